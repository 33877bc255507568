"""`corpus:` in an experiment: the names that fedstill knows, and the options of each."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import ModelWrapValidatorHandler, PrivateAttr, ValidationInfo, field_validator, model_validator

from fedstill.common.settings import Settings
from fedstill.data.corpora import amazon, glue, images, memory, named, reviews, superglue, tasks, topics, tweets
from fedstill.data.corpora.files import Columns
from fedstill.data.corpora.memory import Held

EMBEDDED = {
    "tweets": tweets.CORPUS,
    "reviews": reviews.CORPUS,
    "amazon": amazon.CORPUS,
    "glue": glue.CORPUS,
    "superglue": superglue.CORPUS,
    **topics.CORPORA,
    "tasks": tasks.CORPUS,
    **images.CORPORA,
}
"""Everything about a corpus but its name stands in its own file."""
SEPARATE: tuple[Literal["test", "validation"], ...] = ("test", "validation")
"""Rows that may stand in files of their own."""
FILES: tuple[Literal["path", "test", "validation"], ...] = ("path", *SEPARATE)


class CorpusSpec(Settings):
    """Where labelled texts or images come from: a name fedstill knows, a file or folder, a Hugging Face data set.

    In a program also rows in memory, alone or as `{"table": rows, "text": ..., "label": ...}`.
    """

    name: str | None = None
    task: str | None = None
    """A task of glue or superglue."""
    tasks: dict[str, CorpusSpec | None] | None = None
    """Task name -> corpus; for superglue a list of its task names."""
    path: str | None = None
    """With `tasks`, the folder that the tasks' own paths are relative to."""
    test: str | None = None
    """A separate test file (or folder, or split of a data set)."""
    validation: str | None = None
    """The same for validation rows, which clients otherwise draw from their own."""
    text: str | list[str] = "text"
    """One column, or two that make a pair."""
    label: str = "label"
    domain: str | None = None
    group: str | None = None
    encoding: str = "utf-8"
    header: list[str] | None = None
    """Column names, for a file without a header row."""
    delimiter: str | None = None
    """Between the fields of a CSV file; found in its first row when not given. In TSV it makes quotes count."""
    missing: Literal["error", "drop"] = "error"
    """What becomes of rows without a label."""
    unseen: Literal["error", "drop"] = "error"
    """What becomes of rows of a separate test whose label no training row has, unless `labels:` names it."""
    fold_labels: bool = False
    """Whether labels that differ only in case and spacing are one, in the spelling of most rows (or of `labels:`)."""
    split: str = "train"
    config: str | None = None
    classes: Literal[9, 14] = 14
    """The number of classes of dbpedia."""
    size: int = 28
    """The height and width that images are scaled to."""
    cut: bool = False
    """Whether superglue keeps only as many training rows as FedDRS uses."""

    _held: dict[str, Held] = PrivateAttr(default_factory=dict)
    """Rows in memory that `path`, `test` or `validation` stand for."""

    @model_validator(mode="before")
    @classmethod
    def _name_alone(cls, value: Any) -> Any:
        options = {"name": value} if isinstance(value, str) else value
        name = options.get("name") if isinstance(options, dict) else None
        if isinstance(name, str) and name not in EMBEDDED and name.lower() in EMBEDDED:
            raise ValueError(f"there is no corpus called {name}; did you mean {name.lower()}?")
        return options

    @field_validator("task")
    @classmethod
    def _spelled(cls, value: str | None, info: ValidationInfo) -> str | None:
        suite = superglue if info.data.get("name") == "superglue" else glue
        return None if value is None else suite.spelled(value)

    @field_validator("tasks", mode="before")
    @classmethod
    def _listed(cls, value: Any, info: ValidationInfo) -> Any:
        if not isinstance(value, list) or not all(isinstance(task, str) for task in value):
            return value
        if len({task.lower() for task in value}) < len(value):
            raise ValueError("a task is named twice")
        return dict.fromkeys(value)

    @field_validator("tasks")
    @classmethod
    def _of_one_kind(cls, value: dict[str, CorpusSpec | None] | None, info: ValidationInfo) -> Any:
        if value is None:
            return None
        if not value:
            raise ValueError("name at least one task")
        if info.data.get("name") == "superglue":
            if any(value.values()):
                raise ValueError("superglue's own tasks are a list, as in [CB, RTE]; other corpora need `name: tasks`")
            return {superglue.spelled(task): None for task in value}
        for task, corpus in value.items():
            if corpus is None:
                raise ValueError(f"{task} needs a corpus, as in `{task}: {{name: agnews, path: FOLDER}}`")
            if corpus.is_of_tasks:
                raise ValueError(f"{task} is made of tasks itself; name each of them here instead")
            if not task.strip() or "/" in task:
                raise ValueError(f"{task!r} cannot name a task, whose labels are called task/label; leave the / out")
        return value

    @field_validator("delimiter")
    @classmethod
    def _one_character(cls, value: str | None) -> str | None:
        if value is not None and (len(value) != 1 or value in '\r\n"'):
            raise ValueError('must be one character, such as ";" or "\\t"')
        return value

    @model_validator(mode="after")
    def _one_source(self) -> CorpusSpec:
        if not isinstance(self.text, str) and len(self.text) not in (1, 2):
            raise ValueError("`text:` is one column, or a list of two that make a pair")
        if self.name is None and self.path is None:
            raise ValueError("a corpus needs a `name:` or a `path:`")
        if self.name is not None and self.path is not None and not self._takes_path:
            raise ValueError(f"a corpus has a `name:` ({self.name}) or a `path:` ({self.path}), not both")
        if self.name == "glue" and self.task is None:
            raise ValueError(f"glue needs a `task:`, one of {', '.join(glue.TASKS)}")
        if self.name == "tasks" and self.tasks is None:
            raise ValueError("tasks needs `tasks:`, a corpus for each task, as in {news: {name: agnews}, ...}")
        if idle := self._idle():
            raise ValueError(f"{self.name or self.path} takes no {', '.join(f'`{key}:`' for key in idle)}")
        if self.task is not None and self.tasks is not None:
            raise ValueError("superglue has a `task:` or `tasks:`, not both")
        return self

    @model_validator(mode="wrap")
    @classmethod
    def _in_memory(cls, value: Any, make: ModelWrapValidatorHandler[CorpusSpec]) -> CorpusSpec:
        value = named.settings(value)
        if not isinstance(value, dict) or not (
            "table" in value or any(memory.is_table(value.get(k)) for k in SEPARATE)
        ):
            return make(value)
        settings = {("path" if key == "table" else key): part for key, part in value.items()}
        if "table" in value and ("path" in value or not memory.is_table(value["table"])):
            raise ValueError(f"`table` is {memory.FORMS}, and takes the place of `path`")
        text = settings.get("text", "text")
        texts = [text] if isinstance(text, str) else list(text)
        wanted = [*texts, settings.get("label", "label"), settings.get("domain"), settings.get("group")]
        held: dict[str, Held] = {
            key: Held.of(settings[key], [name for name in wanted if isinstance(name, str)])
            for key in FILES
            if memory.is_table(settings.get(key))
        }
        spec = make({**settings, **{key: rows.file for key, rows in held.items()}})
        spec._held = held
        return spec

    def __getstate__(self) -> dict[Any, Any]:
        """Without rows in memory that a run has kept in a file."""
        state = super().__getstate__()
        unkept = {key: rows for key, rows in self._held.items() if getattr(self, key) == rows.file}
        return state | {"__pydantic_private__": {"_held": unkept}}

    def held(self, key: Literal["path", "test", "validation"]) -> Held | None:
        """The rows in memory that a path stands for; None: it is a file."""
        return self._held.get(key)

    def held_files(self) -> dict[str, bytes]:
        """The files that keep the rows in memory, by name."""
        inside = [part for part in (self.tasks or {}).values() if part is not None]
        own = {rows.file: rows.data for rows in self._held.values()}
        return own | {name: data for part in inside for name, data in part.held_files().items()}

    def kept_in(self, folder: Path) -> CorpusSpec:
        """The same with rows in memory, and those that a run kept, in files of this folder."""
        paths = {key: memory.kept_name(path) for key in FILES if (path := getattr(self, key))}
        changes: dict[str, Any] = {
            key: str(folder / name)
            for key, name in paths.items()
            if key in self._held or (name != getattr(self, key) and (folder / name).is_file())
        }
        if self.tasks is not None:
            changes["tasks"] = {task: part and part.kept_in(folder) for task, part in self.tasks.items()}
        return self.model_copy(update=changes) if changes else self

    def _idle(self) -> list[str]:
        """Settings that were changed and would be ignored."""
        columns = {"text", "label", "domain", "group", "missing", "unseen", "fold_labels"}
        if self.name in EMBEDDED:
            used = {"name"} | EMBEDDED[self.name].settings
        elif self.name:
            used = {"name", *SEPARATE, "split", "config"} | columns
        else:
            used = {*FILES, "encoding", "header", "delimiter"} | columns
        fields = type(self).model_fields
        return [key for key, field in fields.items() if key not in used and getattr(self, key) != field.default]

    @property
    def _takes_path(self) -> bool:
        return self.name in EMBEDDED and "path" in EMBEDDED[self.name].settings

    @property
    def folder(self) -> Path | None:
        """Where its files lie: for a corpus that we know, also the folder of its name in a folder of several."""
        if self.path is None:
            return None
        path = Path(self.path).expanduser()
        own = path / str(self.name)
        return own if self.name in EMBEDDED and own.is_dir() else path

    @property
    def is_of_tasks(self) -> bool:
        """Whether this is several corpora that are to be joined."""
        return self.name == "tasks" or (self.name == "superglue" and self.task is None)

    def parts(self) -> dict[str, CorpusSpec]:
        """For a corpus of tasks: each task's corpus, with its full path."""
        if self.name == "superglue":
            shared = {"name": "superglue", "path": self.path, "cut": self.cut}
            return {task: CorpusSpec.model_validate({**shared, "task": task}) for task in self.tasks or superglue.TASKS}
        return {task: corpus.below(self.path) for task, corpus in (self.tasks or {}).items() if corpus is not None}

    def below(self, root: str | None) -> CorpusSpec:
        """The same specification with relative paths below this folder."""
        if root is None or self.path is None:
            return self
        given = {key: value for key in FILES if (value := getattr(self, key))}
        return self.model_copy(
            update={key: str(Path(root).expanduser() / Path(value).expanduser()) for key, value in given.items()}
        )

    def columns(self) -> Columns:
        """The names of the files' columns."""
        text, *pair = [self.text] if isinstance(self.text, str) else self.text
        return Columns(text, pair[0] if pair else None, self.label, self.domain, self.group)
