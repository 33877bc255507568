"""The report page of runs that go on, served on this machine."""
