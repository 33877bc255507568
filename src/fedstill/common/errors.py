"""The one exception whose message is written for the user."""


class FedstillError(Exception):
    """Something the user can fix; the message says what was wrong, where, and what to do next."""


class Unsaved(FedstillError):
    """A run cannot go on, because a file of it cannot be written or read; what was written before is whole."""
