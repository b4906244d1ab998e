"""Questions with short answers, facts, and reviews with their sentiment."""

from collections.abc import Sequence
from random import Random

from training.demo.names import draw_name
from training.demo.stories import ADJECTIVES, PLACES, THINGS
from training.demo.words import fix_articles, words

_CAPITALS = words(
    "Austria Vienna|Canada Ottawa|Chile Santiago|Cuba Havana|Denmark Copenhagen|Egypt Cairo|England London|"
    "Finland Helsinki|France Paris|Germany Berlin|Ghana Accra|Greece Athens|Hungary Budapest|Ireland Dublin|"
    "Italy Rome|Japan Tokyo|Kenya Nairobi|Norway Oslo|Peru Lima|Poland Warsaw|Portugal Lisbon|Spain Madrid|"
    "Sweden Stockholm|Tunisia Tunis"
)
_OPPOSITES = words(
    "big small|black white|clean dirty|cold hot|dark light|day night|dry wet|early late|fast slow|first last|"
    "full empty|good bad|happy sad|hard soft|high low|left right|long short|new old|open closed|rich poor|"
    "sweet sour|thick thin|true false|up down|young old"
)
_SOUNDS = words(
    "cat meows|cow moos|dog barks|duck quacks|frog croaks|horse neighs|lion roars|owl hoots|pig grunts|sheep bleats"
)
_LEGS = words(
    "ant six|bee six|bird two|cat four|cow four|dog four|duck two|fish none|horse four|snake none|spider eight"
)
_COLOURS = words(
    "banana yellow|carrot orange|cherry red|coal black|grass green|lemon yellow|milk white|snow white|tomato red"
)
_UNCOUNTED = words("coal grass milk snow")
_DAYS = words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
_MONTHS = words("January February March April May June July August September October November December")

_PRAISE = words("beautiful|brilliant|charming|delightful|excellent|great|lovely|perfect|very good|wonderful")
_BLAME = words("awful|bad|boring|broken|dirty|horrible|poor|terrible|ugly|useless")
_PRAISES = words(
    "I loved it.|I would buy it again.|It works very well.|My whole family enjoyed it.|I could not be happier.|"
    "Thank you so much!|Best of all was the price.|It made my day."
)
_BLAMES = words(
    "I hated it.|I want my money back.|It broke after a day.|Nobody in my family liked it.|"
    "I was very disappointed.|Never again!|It was far too expensive.|What a waste of time."
)
_ITEMS = words(
    "book|breakfast|camera|chair|concert|dinner|film|game|hotel|lesson|museum|phone|play|radio|room|song|soup|trip"
)


def _pair(rng: Random, pairs: Sequence[str]) -> list[str]:
    return rng.choice(pairs).split()


def _sum(rng: Random) -> tuple[str, str]:
    a, b = rng.randint(0, 20), rng.randint(0, 20)
    return (f"What is {a} + {b}?", str(a + b)) if rng.random() < 0.5 else (f"What is {a + b} - {b}?", str(a))


def _capital(rng: Random) -> tuple[str, str]:
    country, city = _pair(rng, _CAPITALS)
    if rng.random() < 0.3:
        return f"Which country has the capital {city}?", country
    return f"What is the capital of {country}?", city


def _opposite(rng: Random) -> tuple[str, str]:
    a, b = _pair(rng, _OPPOSITES)
    return f"What is the opposite of {a}?", b


def _animal(rng: Random) -> tuple[str, str]:
    if rng.random() < 0.5:
        animal, sound = _pair(rng, _SOUNDS)
        return f"Which animal {sound}?", f"The {animal}."
    animal, legs = _pair(rng, _LEGS)
    return f"How many legs does a {animal} have?", legs.capitalize() + "."


def _colour(rng: Random) -> tuple[str, str]:
    thing, colour = _pair(rng, _COLOURS)
    return (
        f"What colour is {thing if thing in _UNCOUNTED else 'a ' + thing}?",
        colour.capitalize() + ".",
    )


def _next(rng: Random) -> tuple[str, str]:
    kind, names = rng.choice((("day", _DAYS), ("month", _MONTHS)))
    i = rng.randrange(len(names))
    if rng.random() < 0.5:
        return f"Which {kind} comes after {names[i - 1]}?", names[i]
    return f"Which {kind} comes before {names[i]}?", names[i - 1]


def _owner(rng: Random) -> tuple[str, str]:
    """Reading: who has what; the answer is copied from the question."""
    a, b = draw_name(rng, made_up=0.5), draw_name(rng, made_up=0.5)
    (t, u), (j, k) = rng.sample(THINGS, 2), rng.sample(ADJECTIVES, 2)
    facts = f"{a} has a {j} {t}, and {b} has a {k} {u}."
    return rng.choice(
        (
            (f"{facts} Who has the {t}?", a),
            (f"{facts} Who has the {u}?", b),
            (f"{facts} What does {a} have?", f"A {j} {t}."),
            (f"{facts} What does {b} have?", f"A {k} {u}."),
        )
    )


def _place(rng: Random) -> tuple[str, str]:
    """Reading: who is where; the answer is copied from the question."""
    a, b = draw_name(rng, made_up=0.5), draw_name(rng, made_up=0.5)
    p, q = rng.sample(PLACES, 2)
    facts = f"{a} is at {p}. {b} is at {q}."
    return rng.choice(
        (
            (f"{facts} Where is {a}?", f"At {p}."),
            (f"{facts} Where is {b}?", f"At {q}."),
            (f"{facts} Who is at {p}?", a),
            (f"{facts} Who is at {q}?", b),
        )
    )


def question(rng: Random) -> tuple[str, str]:
    """One question and its answer, such as ("What is 3 + 4?", "7")."""
    kinds = (_sum, _capital, _opposite, _animal, _colour, _next, _owner, _place)
    ask, answer = rng.choices(kinds, (3, 2, 2, 1, 1, 1, 4, 2))[0](rng)
    return fix_articles(ask), fix_articles(answer)


def fact(rng: Random) -> str:
    """Two to five true sentences such as "The capital of Norway is Oslo."."""
    return " ".join(fix_articles(_statement(rng)) for _ in range(rng.randint(2, 5)))


def _statement(rng: Random) -> str:
    country, city = _pair(rng, _CAPITALS)
    one, other = _pair(rng, _OPPOSITES)
    creature, legs = _pair(rng, _LEGS)
    thing, colour = _pair(rng, _COLOURS)
    i, a, b = rng.randrange(7), rng.randint(0, 20), rng.randint(0, 20)
    return rng.choice(
        (
            f"The capital of {country} is {city}.",
            f"{city} is the capital of {country}.",
            f"The opposite of {one} is {other}.",
            "The {} {}.".format(*_pair(rng, _SOUNDS)),
            f"A {creature} has {'no' if legs == 'none' else legs} legs.",
            f"{thing.capitalize()} is {colour}." if thing in _UNCOUNTED else f"A {thing} is {colour}.",
            f"{_DAYS[i]} comes after {_DAYS[i - 1]}.",
            f"{a} + {b} = {a + b}.",
        )
    )


def review(rng: Random) -> tuple[str, str]:
    """One review of one to three sentences, and "positive" or "negative"."""
    good = rng.random() < 0.5
    item = rng.choice((*_ITEMS, *THINGS))
    words = rng.sample(_PRAISE if good else _BLAME, 2)
    sentences = [
        rng.choice(
            (
                f"The {item} was {words[0]}.",
                f"The {item} is {words[0]} and {words[1]}.",
                f"What a {words[0]} {item}!",
                f"This is a {words[0]} {item}.",
                f"I think the {item} is {words[0]}.",
            )
        ),
        *rng.sample(_PRAISES if good else _BLAMES, rng.choice((0, 1, 1, 2))),
    ]
    if rng.random() < 0.3:
        rng.shuffle(sentences)
    return fix_articles(" ".join(sentences)), "positive" if good else "negative"
