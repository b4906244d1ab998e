"""First names for the demo corpus: real ones, made-up ones, and the held-out ones that training never sees."""

from dataclasses import dataclass
from random import Random

from training.demo.words import words

HELD_OUT_NAMES: tuple[str, ...] = (
    *("Beatrix", "Ingrid", "Malik", "Priya", "Desmond", "Yolanda", "Casper", "Fatima", "Gustav", "Helena"),
    *("Joaquin", "Keiko", "Lorenzo", "Marisol", "Nikolai", "Ophelia", "Rashid", "Sabrina", "Thaddeus", "Winifred"),
)
"""Real first names that no training document contains; the evaluation asks for them."""

GIRLS: tuple[str, ...] = words(
    """
    Ada Adele Agnes Aisha Alba Alice Alma Amara Amelia Amina Amy Ana Angela Anita Anna Annika April Astrid Audrey
    Aurora Ava Bella Bianca Birgit Bonnie Brenda Bridget Camila Cara Carla Carmen Carol Cecilia Celia Chiara Chloe
    Clara Cleo Cora Daisy Dana Daphne Delia Diana Dora Edith Eileen Elena Eliza Ella Ellen Elsa Emily Emma Erika
    Esme Esther Eva Eve Farah Fay Fiona Flora Freya Gia Gina Giulia Gloria Grace Greta Gwen Hana Hannah Hazel Heidi
    Hilda Holly Ida Imani Ines Irene Iris Isabel Isla Ivy Jade Jana Jane Jasmine Jenny Jill Joan Jodie Julia June
    Karen Kate Kira Lara Laura Leila Lena Leonie Lily Linda Lisa Lola Lotte Louise Lucia Lucy Luna Mabel Maja Mara
    Margo Maria Martha Mary Matilda Maya Mei Meera Mia Mila Mina Mira Molly Mona Nadia Naomi Nell Nina Noor Nora
    Olga Olive Olivia Pam Paula Pearl Penny Petra Phoebe Pia Polly Rachel Rania Rita Robin Rosa Rose Ruby Ruth Sadie
    Salma Sally Sara Selma Sofia Sonia Stella Sue Susan Suki Tara Tessa Thea Tilda Tina Uma Una Ursula Valentina Vera
    Viola Wanda Willa Xena Yara Yasmin Yuki Zadie Zara Zelda Zoe
    """
)
BOYS: tuple[str, ...] = words(
    """
    Aaron Abel Adam Adrian Ahmed Akira Alan Albert Alex Alfie Ali Amir Anders Andre Anton Arlo Arthur Axel Basil Ben
    Benito Bernard Bill Bjorn Bob Boris Bruno Caleb Carl Carlos Cedric Chen Clive Cyrus Dan Daniel Darius David Dennis
    Diego Dmitri Eddie Edgar Edwin Eli Elias Emil Enzo Eric Ernest Ethan Evan Felix Fergus Filip Finn Francis Frank
    Fred Gabriel George Gideon Gilbert Giles Gregor Hamid Hans Harold Harry Hassan Hector Henrik Henry Hiro Hugo Ian
    Ibrahim Igor Isaac Ivan Jack Jacob Jamal James Jan Jasper Javier Jens Jim Joe Joel Johan John Jonas Jorge Joseph
    Josh Juan Jules Julian Kai Karim Karl Keith Ken Kevin Khalid Kim Klaus Kofi Kurt Kwame Lars Leo Leon Levi Liam
    Linus Lionel Louis Luca Lucas Luis Luke Magnus Marco Mario Mark Martin Mateo Matt Max Milo Mohan Morris Nathan Ned
    Neil Nick Nigel Nils Noah Oliver Omar Oscar Otis Otto Owen Pablo Paco Patrick Paul Pedro Percy Peter Philip Pierre
    Quentin Quinn Rafael Raj Ralph Ravi Ray Remy Rene Rex Robert Rocco Roger Roland Roman Rory Rufus Sam Samir Samuel
    Scott Sean Sergio Simon Stefan Sven Tariq Ted Theo Thomas Tim Toby Tom Tomas Tony Umar Uri Victor Vikram Viktor
    Vincent Wade Walter Will Xavier Yann Yusuf Zane
    """
)

_STARTS = words("b br c ch cl d dr f fl fr g gl gr h j k kr l m n p ph pr qu r s sh sk sl st t th tr v w wh x y z")
_VOWELS = words("a a a a e e e e i i i i o o o u u ea ee ia ie oo ai")
_MIDDLES = words(
    "b bb br d dd dr f g gn h j k l ld ll lm lv m mm n nd nn nt p ph r rd rl rr rt s ss st t th tt v w x z"
)
_ENDS = ("", "", "", *words("b ck d f g h k l ld ll m n n nd ne r r rd rt s s sh ss st t th ta tte us x z"))


@dataclass(frozen=True, kw_only=True)
class Person:
    """A first name and its third-person pronouns, for sentences."""

    name: str
    he: str
    him: str
    his: str


def made_up_name(rng: Random) -> str:
    """A pronounceable name of one to four syllables, such as "Drovell"; never a held-out one."""
    while True:
        syllables = rng.choices((1, 2, 3, 4), (1, 5, 4, 1))[0]
        name = rng.choice(_STARTS) if rng.random() < 0.8 else ""
        for i in range(syllables):
            name += (rng.choice(_MIDDLES) if i else "") + rng.choice(_VOWELS)
        name = (name + rng.choice(_ENDS)).capitalize()
        if 3 <= len(name) <= 11 and name not in HELD_OUT_NAMES:
            return name


def draw_name(rng: Random, *, made_up: float) -> str:
    """A name for a record: made up with probability `made_up`, else one of GIRLS and BOYS."""
    return made_up_name(rng) if rng.random() < made_up else rng.choice(GIRLS + BOYS)


def draw_person(rng: Random, *, made_up: float) -> Person:
    """A person for a story; made-up names take either set of pronouns."""
    girl = rng.random() < 0.5
    name = made_up_name(rng) if rng.random() < made_up else rng.choice(GIRLS if girl else BOYS)
    if girl:
        return Person(name=name, he="she", him="her", his="her")
    return Person(name=name, he="he", him="him", his="his")
