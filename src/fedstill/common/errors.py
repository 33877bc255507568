"""The one exception that is meant for the person at the keyboard."""


class FedstillError(Exception):
    """Something the user can mend; the message says what was wrong, where, and what to do next."""
