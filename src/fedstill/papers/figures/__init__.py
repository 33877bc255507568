"""The papers' figures by name: the runs they need (material), what they show (charts), and the table of all."""
