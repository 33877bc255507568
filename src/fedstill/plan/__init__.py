"""Plans: experiments whose corpus is divided and tokenised, ready for an engine."""
