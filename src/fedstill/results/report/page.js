"use strict";
(() => {
  const root = document.documentElement;
  const nonce = document.currentScript.nonce;
  let figures = JSON.parse(document.getElementById("figures").textContent);
  const drawn = new Set();
  const PAPER_WIDTH = 660; // pixels that fit on A4 and on letter paper
  let isPrinting = false;

  // Light or dark: the reader's choice, or else the system's.

  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const button = document.getElementById("theme");
  const isDark = () => !isPrinting && (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const recall = () => { try { return localStorage.getItem("fedstill-theme"); } catch { return null; } };
  const remember = (theme) => { try { localStorage.setItem("fedstill-theme", theme); } catch { /* not from disk, in some browsers */ } };
  const repaint = () => {
    button.textContent = isDark() ? "Light colours" : "Dark colours";
    for (const place of drawn) Plotly.react(place, ...parts(place));
  };
  if (recall()) root.dataset.theme = recall();
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    remember(root.dataset.theme);
    repaint();
  });
  system.addEventListener("change", repaint);

  // Charts: figures are data; colours of ground and text follow the theme.

  const heightOf = (place) => figures[place.id].layout.height || 340;
  const parts = (place) => {
    const { data, layout } = figures[place.id];
    const [ink, line] = isDark() ? ["#e6e9ec", "#3a434d"] : ["#1b1f24", "#d0d7de"];
    const axis = { gridcolor: line, linecolor: line, zerolinecolor: line, automargin: true };
    const base = {
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: ink, size: 13, family: getComputedStyle(document.body).fontFamily },
      margin: { l: 50, r: 12, t: 12, b: 45 },
      showlegend: data.some((trace) => trace.name !== undefined),
      legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 },
      hoverlabel: { bgcolor: isDark() ? "#1d2329" : "#ffffff", font: { color: ink } },
      ...layout,
      xaxis: { ...axis, ...layout.xaxis },
      yaxis: { ...axis, ...layout.yaxis },
      height: heightOf(place),
      uirevision: "same", // new numbers leave the reader's zoom as it is
      ...(isPrinting ? { width: PAPER_WIDTH, autosize: false } : { autosize: true }),
    };
    return [data, base, { responsive: true, displayModeBar: false }];
  };
  const draw = (place) => {
    if (drawn.has(place) || place.closest("details.run:not([open])")) return;
    drawn.add(place);
    place.style.height = `${heightOf(place)}px`;
    Plotly.newPlot(place, ...parts(place));
  };
  const drawVisible = async () => {
    for (const place of document.querySelectorAll(".chart")) {
      draw(place);
      await new Promise((done) => setTimeout(done)); // the page answers between two charts
    }
    root.dataset.ready = "yes";
  };
  const save = (place) => Plotly.downloadImage(place, { format: "png", scale: 2, filename: place.dataset.file, width: 900, height: heightOf(place) });
  document.addEventListener("click", ({ target }) => {
    if (target.closest("button.save")) save(target.closest("figure").querySelector(".chart"));
    if (target.closest(".sortable th button")) sort(target.closest("th"));
  });
  const start = async () => {
    const packed = Uint8Array.from(atob(document.getElementById("plotly").textContent), (letter) => letter.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    const code = document.createElement("script");
    code.nonce = nonce;
    code.textContent = await new Response(stream).text();
    document.head.append(code);
    await drawVisible();
    document.addEventListener("toggle", ({ target }) => { if (target.matches("details.run")) drawVisible(); }, true);
  };

  // Paper: light, and as wide as the sheet.

  const onPaper = (now) => {
    isPrinting = now;
    if (now && window.Plotly) document.querySelectorAll(".chart").forEach(draw);
    repaint();
  };
  window.addEventListener("beforeprint", () => onPaper(true));
  window.addEventListener("afterprint", () => onPaper(false));
  document.getElementById("print").addEventListener("click", () => window.print());

  // Tables: a heading sorts, the first time from the largest number or the first word.

  const valueOf = (row, column) => {
    const value = row.cells[column].dataset.value;
    return value === "" || isNaN(value) ? value : Number(value);
  };
  const compared = (one, other) => (typeof one === "number" && typeof other === "number" ? one - other : String(one).localeCompare(String(other)));
  const sort = (heading) => {
    const table = heading.closest("table");
    const body = table.tBodies[0];
    const rows = [...body.rows];
    const isNumber = rows.some((row) => typeof valueOf(row, heading.cellIndex) === "number");
    const first = isNumber ? "descending" : "ascending";
    const second = isNumber ? "ascending" : "descending";
    const way = heading.getAttribute("aria-sort") === first ? second : first;
    for (const other of table.querySelectorAll("th[aria-sort]")) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", way);
    rows.sort((one, other) => {
      const [a, b] = [valueOf(one, heading.cellIndex), valueOf(other, heading.cellIndex)];
      if (a === "" || b === "") return (a === "") - (b === ""); // what is not known stays last
      return (way === "ascending" ? 1 : -1) * compared(a, b);
    });
    body.append(...rows);
  };

  // A page that follows runs asks how they stand, and fetches what is new; what the reader has done to it stays.

  const live = document.getElementById("live");
  const headingOf = (place) => place.querySelector("h1, h2, h3, h4, h5, summary, caption")?.textContent || place.textContent;
  const keyOf = (place) => `${place.closest("details.run")?.dataset.key || place.closest("section")?.firstElementChild.id || ""}/${place.tagName}/${place.dataset.key || headingOf(place)}`;
  const keyed = (places) => {
    const found = new Map();
    for (const place of places) {
      let key = keyOf(place);
      while (found.has(key)) key += "+";
      found.set(key, place);
    }
    return found;
  };
  const kept = (selector, within = document) => keyed(within.querySelectorAll(`main ${selector}`));
  const swap = (fresh) => {
    const open = kept("details");
    const tables = kept("table.sortable");
    const charts = kept("figure");
    const [seen, top] = [...kept("h2, main figure, main details.run, main section")].map(([key, place]) => [key, place.getBoundingClientRect().top]).find(([, top]) => top >= 0) || [];
    const [focused] = [...kept("button, main summary, main [tabindex]")].find(([, place]) => place === document.activeElement) || [];
    figures = JSON.parse(fresh.getElementById("figures").textContent);
    for (const [key, place] of kept("details", fresh)) if (open.has(key)) place.open = open.get(key).open;
    for (const [key, figure] of kept("figure", fresh)) {
      const before = charts.get(key)?.querySelector(".chart");
      if (!before || !drawn.has(before)) continue;
      const place = figure.querySelector(".chart"); // the drawing goes on in its new place, with the reader's zoom
      before.id = place.id;
      before.setAttribute("aria-label", place.getAttribute("aria-label"));
      place.replaceWith(before);
    }
    for (const selector of ["header h1", "header p", "nav", "main"]) document.querySelector(selector).replaceWith(fresh.querySelector(selector));
    for (const place of drawn) if (!place.isConnected) { Plotly.purge(place); drawn.delete(place); }
    for (const [key, table] of kept("table.sortable")) {
      const sorted = tables.get(key)?.querySelector("th[aria-sort]");
      if (!sorted) continue;
      const heading = [...table.querySelectorAll("th")].find((one) => one.textContent === sorted.textContent);
      while (heading && heading.getAttribute("aria-sort") !== sorted.getAttribute("aria-sort")) sort(heading);
    }
    document.title = fresh.title;
    for (const place of drawn) { place.style.height = `${heightOf(place)}px`; Plotly.react(place, ...parts(place)); }
    drawVisible();
    const now = seen && kept("h2, main figure, main details.run, main section").get(seen);
    if (now) window.scrollBy({ top: now.getBoundingClientRect().top - top, behavior: "instant" });
    if (focused) kept("button, main summary, main [tabindex]").get(focused)?.focus({ preventScroll: true });
  };
  const say = (id, words) => { const place = document.getElementById(id); if (place.textContent !== words) place.textContent = words; };
  const ask = async (path) => {
    const answer = await fetch(path, { cache: "no-store" });
    if (!answer.ok) throw new Error(await answer.text());
    return answer;
  };
  const follow = async () => {
    let wait = 2;
    try {
      const news = await (await ask("news")).json();
      wait = news.wait_s;
      if (news.stamp !== live.dataset.stamp) {
        const fresh = new DOMParser().parseFromString(await (await ask("part")).text(), "text/html");
        swap(fresh);
        live.dataset.stamp = fresh.getElementById("live").dataset.stamp;
      } else {
        const panels = document.getElementById("panels");
        if (panels.dataset.shown !== news.panels) panels.innerHTML = panels.dataset.shown = news.panels;
      }
      say("live-words", news.words);
      say("live-left", news.left);
      live.classList.remove("away");
    } catch (problem) {
      live.classList.add("away");
      say("live-words", "fedstill watch does not answer: start it again, and this page goes on");
      say("live-left", "");
    }
    setTimeout(follow, 1000 * wait);
  };

  repaint();
  start().then(() => live && follow(), (problem) => {
    document.getElementById("no-charts").hidden = false;
    console.warn(problem);
  });
})();
