"""Small children's stories: a cast and a few objects, drawn once a story, told through one of the plots."""

from random import Random

from training.demo.names import Person, draw_person
from training.demo.plots import ENDING, OPENING, PLOTS
from training.demo.words import fix_articles, words

ANIMALS = words(
    "bear cat deer dog duck fox frog goat goose hare hedgehog mole mouse otter owl pony rabbit raven squirrel"
)
THINGS = words(
    "basket bell boat book box candle clock coat coin compass cup doll drum flute hat horn kite lamp lantern "
    "mirror necklace pipe ring scarf ship spoon star sword umbrella violin whistle"
)
ADJECTIVES = words(
    "beautiful blue bright broken brown golden green grey heavy little magic new old orange pretty purple red "
    "round shiny silver small strange white wooden yellow"
)
TRAITS = words(
    "brave careful clever curious funny gentle happy honest kind lazy little lonely merry proud quiet shy small"
)
FOODS = words(
    "apples|berries|bread and butter|cake|cheese|cherries|cookies|honey cake|hot soup|nuts|pancakes|pears|"
    "plums|pudding|rice"
)
PLACES = words(
    "the big bridge|the blue lake|the castle|the dark wood|the farm|the garden|the green hill|the lighthouse|"
    "the market|the meadow|the mill|the mountain|the old harbour|the old oak|the park|the pond|"
    "the railway station|the river|the ruined tower|the school|the seashore|the stone wall|the waterfall|"
    "the windmill"
)
HOMES = words(
    "a blue house on a hill|a cottage at the edge of the wood|a house with a red roof|a little town by the sea|"
    "a quiet village|a small house near the river|a tall house in the city|a valley between two mountains|"
    "a village in the snow|an old lighthouse|an old mill"
)
BURROWS = words(
    "a hole under an old oak|a hollow tree|a nest of leaves and moss|a small cave|a warm burrow under the hill"
)
ELDERS = words("aunt father grandfather grandmother mother uncle")
TIMES = words("afternoon evening morning")
WEATHERS = words("a cold day|a fine day|a sunny day|a warm day|raining|snowing|very hot|very windy|warm and bright")

_TOPICS = {"b": "{a} and {b}", "animal": "a {animal}", "thing": "a {adj} {thing}"}
"""What one may ask a story to be about, by the slot that the story then has to mention."""


def _slots(rng: Random) -> dict[str, str]:
    """Everything a plot may name, coherent within the story: two people, an animal, an object, two places."""
    hero = draw_person(rng, made_up=0.25)
    friend = draw_person(rng, made_up=0.25)
    while friend.name == hero.name:
        friend = draw_person(rng, made_up=0.25)
    animal, species = rng.sample(ANIMALS, 2)
    place, place2 = rng.sample(PLACES, 2)
    is_animal = rng.random() < 0.25
    return {
        **_pronouns(hero, ""),
        **_pronouns(friend, "b_"),
        "a": hero.name,
        "b": friend.name,
        "kid": species if is_animal else ("girl" if hero.he == "she" else "boy"),
        "home": rng.choice(BURROWS if is_animal else HOMES),
        "elder": rng.choice(ELDERS),
        "animal": animal,
        "thing": rng.choice(THINGS),
        "adj": rng.choice(ADJECTIVES),
        "place": place,
        "place2": place2,
        "food": rng.choice(FOODS),
        "trait": rng.choice(TRAITS),
        "time": rng.choice(TIMES),
        "weather": rng.choice(WEATHERS),
    }


def _pronouns(person: Person, prefix: str) -> dict[str, str]:
    """The pronoun slots of one person; capitalised ones start a sentence."""
    return {
        f"{prefix}he": person.he,
        f"{prefix}him": person.him,
        f"{prefix}his": person.his,
        f"{prefix}He": person.he.capitalize(),
        f"{prefix}His": person.his.capitalize(),
    }


def _beats(plot: str) -> list[list[str]]:
    """The alternatives of each beat."""
    return [beat.splitlines() for beat in plot.strip().split("\n\n")]


def story(rng: Random) -> tuple[str, str]:
    """One story.

    Args:
        rng: the only source of chance.
    Returns:
        A request such as "Tell me a story about a fox." and the story: eight to ten beats of one to three sentences,
        in one to four paragraphs.
    """
    slots = _slots(rng)
    beats = _beats(OPENING) + _beats(rng.choice(PLOTS)) + _beats(ENDING)
    told = [rng.choice(beat).format_map(slots) for beat in beats]
    breaks = set(rng.sample(range(1, len(told)), rng.choice((0, 0, 1, 2, 3))))
    text = told[0]
    for i, beat in enumerate(told[1:], start=1):
        text += ("\n\n" if i in breaks else " ") + beat
    topics = ["a {kid} named {a}", "{a}"]
    topics += [topic for slot, topic in _TOPICS.items() if slots[slot] in text]
    topic = rng.choice(topics).format_map(slots)
    ask = rng.choice(("Tell me a story about {}.", "Write a story about {}.", "Tell a story about {}.")).format(topic)
    return fix_articles(ask), fix_articles(text)
