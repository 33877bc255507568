"""What every message passes through: a binary form, a ledger of its bytes, and a guard."""
