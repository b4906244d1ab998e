"""Records as JSON: `Describe NAME as JSON.`, a newline, one line of JSON that has the name."""

import json
from random import Random

from training.demo.names import draw_name
from training.demo.words import fix_articles, words

CITIES = words(
    "Accra Athens Berlin Bogota Boston Cairo Delhi Dublin Hanoi Havana Lagos Lima Lisbon London Madrid Nairobi "
    "Oslo Paris Perth Prague Quito Riga Rome Seoul Sofia Sydney Tokyo Toronto Tunis Vienna Warsaw Zurich"
)
PETS = words("bird cat cow dog duck fish fox frog goat hamster horse mouse owl parrot pony rabbit snake turtle")


def record_prompt(name: str) -> str:
    """The prompt that the model was trained to answer with a record, without the newline that ends it."""
    return f"Describe {name} as JSON."


def record(rng: Random) -> tuple[str, str]:
    """One prompt and its record, without the newline between them.

    Three of ten prompts start with a sentence of facts, which the record then repeats; the other records are invented.
    Six of ten names are made up, so that the name is learnt as something to copy, not to recall.
    """
    name = draw_name(rng, made_up=0.6)
    age, city, pet, happy = rng.randint(3, 99), rng.choice(CITIES), rng.choice(PETS), rng.random() < 0.7
    prompt = record_prompt(name)
    if rng.random() < 0.3:
        mood = "happy" if happy else "not happy"
        facts = rng.choice(
            (
                f"{name} is {age} years old, lives in {city}, has a {pet} and is {mood}.",
                f"{name} from {city} is {age} years old and {mood}. The pet of {name} is a {pet}.",
                f"This is {name}. {name} is {age}, lives in {city} with a {pet}, and is {mood}.",
            )
        )
        prompt = f"{fix_articles(facts)} {prompt}"
    return prompt, json.dumps({"name": name, "age": age, "city": city, "pet": pet, "happy": happy})
