"""Words, numbers and uuids of which tasks are made."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random
    from collections.abc import Callable


def words_of(text: str) -> list[str]:
    """The words of a text."""
    return text.split()


ADJECTIVES = words_of("""
amber ancient arctic bitter bold brave brief bright brisk broad busy calm careful cheerful chilly clever
cloudy coarse cold common cosy crisp curious daring deep dense distant dusty eager early easy elder empty
even faint famous fancy fast fierce final firm flat foggy fond fragile free fresh frosty gentle giant glad
golden grand grateful happy hasty heavy hidden hollow honest humble icy idle jolly keen kind large lazy
light lively lonely loud loyal lucky mellow merry mighty mild modest narrow neat noble odd patient plain
polite proud quick quiet rapid rare ready rough round royal rusty scarlet secret serious shallow sharp
shiny short shy silent silver simple sleepy slender slow small smooth soft solid sour spare steady steep
stern strict strong sturdy subtle sunny sweet swift tame tender thick thin tidy tiny tough tranquil vast
velvet vivid warm wary weary wide wild windy wise wooden worthy young
""")

NOUNS = words_of("""
acorn almond anchor antler apple apron arch arrow attic autumn axle badge bakery balcony banner barn
barrel basin basket beach beacon beard bell bench berry bicycle blanket blossom boat bonfire border bottle
bottom branch brick bridge broom brush bucket builder bundle butter button cabin cable camel candle canoe
canvas carpet castle cattle cavern cedar cellar chain chalk chapel cherry chimney cider circle clay cliff
clock cloth cloud clover coast collar comet copper corner cottage cotton cradle crane creek crown crystal
cup curtain dairy dancer desert diary dinner doctor dolphin donkey drawer dragon driver eagle elbow elm
ember engine eyelid falcon farmer feather fence fiddle field finger flag flame flute forest fountain fox
frost garden gate glacier glove goose granite grape grove guitar hammer harbour harvest hatch hawk hazel
helmet hermit hill honey hoof horse hotel hunter island ivory jacket jewel jigsaw journey jug juniper
kettle kitchen kite knuckle ladder lagoon lake lamp lantern lawn leaf ledge lemon letter lighthouse lily
lizard lobster locket lumber magnet maple marble market marsh meadow melon merchant mill mirror mitten
monk moon morning mountain muffin museum mustard napkin needle nest nettle notebook oak oar oasis ocean
olive onion orchard otter oven owl paddle page painter palace paper parcel parrot path peach pebble pencil
pepper piano pigeon pillow pine pirate planet plate plough plum pocket pond poppy porch potato prairie
pumpkin quarry quilt rabbit radish raft railway rain raven ribbon ridge river robin rocket roof rope rose
saddle sail salmon sand saucer scarf school shadow shepherd shield ship shoulder shovel signal sister
skater sparrow spider spoon spring squirrel stable stair star station stone storm stove stream street
sugar summit swallow swan sword table tailor teacher temple thimble thistle thunder ticket tiger timber
tower trail train tulip tunnel turnip turtle valley vase village vine violet violin voyage wagon walnut
water weaver wheel whistle willow window winter wolf wool writer yard
""")

KINDS = ("words", "numbers", "uuids")
DIGITS = 7  # digits of a magic number, as in RULER


def one_word(draw: random.Random) -> str:
    """An adjective and a noun, such as quiet-harbour."""
    return f"{draw.choice(ADJECTIVES)}-{draw.choice(NOUNS)}"


def one_number(draw: random.Random) -> str:
    """A number of DIGITS digits."""
    return str(draw.randrange(10 ** (DIGITS - 1), 10**DIGITS))


def one_uuid(draw: random.Random) -> str:
    """A random uuid (version 4)."""
    return str(uuid.UUID(int=draw.getrandbits(128), version=4))


MAKERS: dict[str, Callable[[random.Random], str]] = {
    "words": one_word, "numbers": one_number, "uuids": one_uuid,
}  # fmt: skip


def distinct(make: Callable[[random.Random], str], count: int, draw: random.Random) -> list[str]:
    """`count` different texts that `make` draws, in the order in which they are drawn."""
    found: dict[str, None] = {}
    while len(found) < count:
        found[make(draw)] = None
    return list(found)


def of_kind(kind: str, count: int, draw: random.Random) -> list[str]:
    """`count` different words, numbers or uuids."""
    return distinct(MAKERS[kind], count, draw)


def single_words(count: int, draw: random.Random) -> list[str]:
    """`count` different words in random order: of the lists above, and pairs of them beyond that."""
    known = NOUNS + ADJECTIVES
    draw.shuffle(known)
    return (known + distinct(one_word, max(count - len(known), 0), draw))[:count]
