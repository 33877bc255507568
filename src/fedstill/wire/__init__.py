"""Messages and what they pass through: codecs, a binary form, a guard that checks them, a ledger of their bytes."""
