"""The one exception whose message is written for the user."""


class FedstillError(Exception):
    """Something the user can fix; the message says what was wrong, where, and what to do next."""
