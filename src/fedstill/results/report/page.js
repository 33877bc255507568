"use strict";
(() => {
  const root = document.documentElement;
  const nonce = document.currentScript.nonce;
  const figures = JSON.parse(document.getElementById("figures").textContent);
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
  for (const each of document.querySelectorAll("button.save")) each.addEventListener("click", () => save(each.closest("figure").querySelector(".chart")));
  const start = async () => {
    const packed = Uint8Array.from(atob(document.getElementById("plotly").textContent), (letter) => letter.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    const code = document.createElement("script");
    code.nonce = nonce;
    code.textContent = await new Response(stream).text();
    document.head.append(code);
    await drawVisible();
    for (const run of document.querySelectorAll("details.run")) run.addEventListener("toggle", drawVisible);
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
  for (const each of document.querySelectorAll(".sortable th button")) each.addEventListener("click", () => sort(each.closest("th")));

  repaint();
  start().catch((problem) => {
    document.getElementById("no-charts").hidden = false;
    console.warn(problem);
  });
})();
