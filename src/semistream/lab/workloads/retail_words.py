"""The words that the retailer's names are made of, combined once so that a name is one look-up."""

from __future__ import annotations

import numpy as np
import pyarrow as pa


def _split(text: str) -> list[str]:
    return text.split()


_LOOKS = _split(
    "Alpine Ash Birch Bold Bright Calm Classic Clear Coastal Compact Copper Crisp Deep Everyday Fine Folding "
    "Fresh Grand Light Linen Little Lunar Mellow Modern Nordic Oak Pearl Plain Prime Quiet River Robust Rustic "
    "Silk Slim Solid Stone Swift Urban Velvet Vivid Walnut Warm Wild"
)
_MAKES = ("Basic", "Plus", "Pro", "Mini", "Max", "Duo", "Eco", "Air", "One", "XL")
_THINGS = {
    "Kitchen": "Kettle|Pan|Knife Set|Toaster|Chopping Board|Coffee Press|Mug|Salad Bowl",
    "Living": "Table Lamp|Cushion|Shelf|Rug|Wall Clock|Armchair|Side Table|Vase",
    "Garden": "Rake|Watering Can|Bench|Parasol|Planter|Hose|Pruner|Lantern",
    "Sports": "Yoga Mat|Dumbbell|Bicycle Helmet|Rope|Tent|Backpack|Ball|Goggles",
    "Office": "Desk|Chair|Monitor Stand|Notebook|Pen Set|Stapler|Drawer|Whiteboard",
    "Electronics": "Headphones|Charger|Speaker|Keyboard|Camera|Router|Power Bank|Screen",
    "Clothing": "Jacket|Scarf|Jumper|Trousers|Socks|Shirt|Cap|Gloves",
    "Toys": "Puzzle|Train|Board Game|Doll|Kite|Building Blocks|Card Game|Marbles",
    "Food": "Olive Oil|Honey|Pasta|Tea|Coffee Beans|Chocolate|Jam|Rice",
}
_FIRST = _split(
    "Ada Ahmed Aiko Alba Amara Anna Arjun Bea Bruno Chen Clara Dana David Elif Emma Erik Farah Finn Grace Hana "
    "Hugo Ines Ivan Jamal Jonas Kai Kofi Lara Lena Leo Lina Luca Maia Marek Mei Mila Nadia Noor Omar Otto Priya "
    "Rosa Sami Sara Tariq Theo Uma Vera Wren Yusuf Zoe"
)
_LAST = _split(
    "Abe Ali Andersen Bakker Bauer Berg Blanc Carter Castro Chen Costa Diaz Dubois Evans Fischer Garcia Gupta Haas "
    "Hansen Ito Jansen Kaya Khan Kim Klein Kowalski Kumar Lang Larsen Lee Lopez Mahmoud Martin Mensah Meyer Moreau "
    "Mori Murphy Nagy Nguyen Novak Okafor Olsen Park Patel Petrov Popescu Quinn Reid Ricci Roy Ruiz Santos Sato "
    "Schmidt Silva Singh Smith Suzuki Tanaka Torres Toth Usman Varga Vogel Wang Weber Wood Yilmaz Young Zhang"
)
_PLACES = {
    "AT": "Graz Linz Salzburg Wien",
    "AU": "Adelaide Brisbane Melbourne Perth Sydney",
    "BR": "Curitiba Recife Salvador Santos",
    "CA": "Calgary Halifax Montreal Ottawa Toronto",
    "DE": "Berlin Bremen Dresden Hamburg Kiel Leipzig",
    "ES": "Bilbao Madrid Sevilla Valencia",
    "FR": "Lille Lyon Nantes Paris Rennes",
    "GB": "Bristol Cardiff Leeds London York",
    "IN": "Chennai Delhi Jaipur Mumbai Pune",
    "JP": "Kobe Kyoto Nagoya Osaka Tokyo",
    "NZ": "Auckland Dunedin Hamilton Wellington",
    "US": "Austin Boston Chicago Denver Seattle",
}
_ROADS = ("Station Road", "High Street", "Mill Lane", "Park Avenue", "Church Street", "Harbour Row", "Elm Way")

_names = [
    (f"{look} {thing} {make}", number)
    for number, things in enumerate(_THINGS.values())
    for thing in things.split("|")
    for look in _LOOKS
    for make in _MAKES
]
_people = [(first, last) for first in _FIRST for last in _LAST]
_cities = [(city, country) for country, cities in _PLACES.items() for city in cities.split()]

CATEGORIES = pa.array(list(_THINGS), pa.string())
PRODUCTS = pa.array([name for name, _ in _names], pa.string())
#: For each of PRODUCTS, its place in CATEGORIES.
PRODUCT_CATEGORY = np.array([category for _, category in _names], dtype=np.int64)
BRANDS = pa.array([f"{last} & {other}" for last in _LAST[:24] for other in _LAST[40:60]], pa.string())
COLOURS = pa.array(_split("black blue brown green grey orange pink red teal violet white yellow"), pa.string())
TAGS = pa.array(
    _split("bestseller clearance eco gift heavy imported local new organic outlet seasonal vegan"), pa.string()
)
PEOPLE = pa.array([f"{first} {last}" for first, last in _people], pa.string())
#: For each of PEOPLE, how a mail address of theirs begins.
PERSON_MAILBOX = pa.array([f"{first}.{last}.".lower() for first, last in _people], pa.string())
SEGMENTS = pa.array(["consumer", "family", "student", "small business", "corporate"], pa.string())
STREETS = pa.array([f"{road} {number}" for road in _ROADS for number in range(1, 200)], pa.string())
CITIES = pa.array([city for city, _ in _cities], pa.string())
CITY_COUNTRY = pa.array([country for _, country in _cities], pa.string())
