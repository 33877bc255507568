"""The papers' tables and figures: recipes, and making tables from them."""
