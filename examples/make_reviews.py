"""Write reviews.csv, made-up reviews of three shops for the other examples, and new.csv, a few that have no stars."""

import csv
import random

THINGS = {
    "books": ["novel", "atlas", "cookbook"],
    "garden": ["shovel", "hose", "seedling"],
    "toys": ["puzzle", "robot", "kite"],
}
WORDS = {
    "good": ["great", "lovely", "excellent", "perfect", "reliable", "generous"],
    "so-so": ["okay", "average", "acceptable", "ordinary", "usual", "medium"],
    "bad": ["broken", "awful", "terrible", "late", "useless", "rude"],
}


def review(draw: random.Random, shop: str, stars: str, order: int) -> dict[str, str]:
    thing = draw.choice(THINGS[shop])
    # Every shop's customers have three words of six a star, so that shops have something to learn from each other.
    start = 2 * list(THINGS).index(shop)
    first, second = draw.sample((WORDS[stars] * 2)[start : start + 3], 2)
    # The order number makes every text another one: equal texts would be kept together when rows are dealt out.
    body = f"order {order}: the {thing} was {first}, the service {second}"
    return {"title": f"about the {thing}", "body": body, "stars": stars, "shop": shop}


def write(path: str, rows: list[dict[str, str]], columns: list[str]) -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, columns, extrasaction="ignore")
        table.writeheader()
        table.writerows(rows)


if __name__ == "__main__":
    draw = random.Random(0)
    shops = sorted(THINGS)
    rows = [review(draw, shops[order % 3], draw.choice(list(WORDS)), order) for order in range(375)]
    write("reviews.csv", rows[:360], ["title", "body", "stars", "shop"])
    write("new.csv", rows[360:], ["title", "body"])
