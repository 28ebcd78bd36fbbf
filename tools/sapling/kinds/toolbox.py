"""Tools to choose from: written-out ones, and ones made up of random nouns so that choosing has to go by the words alone."""

from __future__ import annotations

import random
from typing import Any

import attrs

from tools.sapling.words import Split, made_up_word, name, number, place, thing

_TEXTS = (
    "see you at noon", "the train is late", "dinner is ready", "call me back", "happy birthday", "the meeting is over", "I am on my way",
    "buy milk and bread", "water the plants", "the door is open", "good luck", "please bring a coat", "the lake is cold", "we won the game",
)
_TEXTS_HELDOUT = ("the boat leaves soon", "bring the blue folder", "lunch is on me", "the gate is closed", "feed the cat", "my flight was late")
_UNITS = ("celsius", "fahrenheit", "metric", "imperial")
_WORD_LISTS = {"language": "French German Spanish Italian Polish Dutch Greek".split(), "colour": "red blue green white pink".split()}


@attrs.frozen
class Parameter:
    """A parameter: its JSON name, what it holds (`place`, `name`, `number`, …) and whether a call must give it."""

    name: str
    holds: str
    required: bool = True

    @property
    def type(self) -> str:
        """The JSON type that the schema states."""
        return "integer" if self.holds == "number" else "string"


@attrs.frozen
class Tool:
    """A function, how its need is voiced (`{param}` in the text) and the keys of what it answers."""

    name: str
    description: str
    parameters: tuple[Parameter, ...]
    asked: tuple[str, ...]
    topic: str
    results: tuple[str, ...] = ()


def _tool(head: str, description: str, parameters: str, asked: str, results: str = "") -> Tool:
    name_, _, topic = head.partition(": ")
    return Tool(name_, description, tuple(_parameter(p) for p in parameters.split()), tuple(asked.split("|")), topic, tuple(results.split()))


def _parameter(text: str) -> Parameter:
    parameter, _, holds = text.partition(":")
    return Parameter(parameter, holds.rstrip("?"), not holds.endswith("?"))


WRITTEN: dict[Split, tuple[Tool, ...]] = {
    "train": (
        _tool("get_weather: weather", "Get the current weather for a city.", "city:place unit:unit?",
              "What is the weather in {city}?|How is the weather in {city}?|Weather in {city}?|Tell me the weather in {city}.|What's the weather like in {city}?",
              "weather temperature"),
        _tool("get_weather: weather", "Get the weather in a given city", "city:place",
              "What is the weather in {city}?|How is the weather in {city}?|What is the weather like in {city} today?|Is the weather good in {city}?",
              "weather temperature"),
        _tool("get_time: time", "Get the current time in a city.", "city:place",
              "What time is it in {city}?|Tell me the time in {city}.|What is the time in {city}?|Time in {city}?", "time"),
        _tool("send_message: message", "Send a message to a person.", "to:name text:text",
              "Send a message to {to}: {text}|Send {to} the message \"{text}\"|Message {to}: {text}", "status"),
        _tool("send_email: email", "Send an email.", "recipient:name subject:text",
              "Send an email to {recipient} with the subject \"{subject}\".|Email {recipient} about \"{subject}\".", "status"),
        _tool("set_timer: timer", "Start a timer.", "minutes:number",
              "Set a timer for {minutes} minutes.|Start a {minutes} minute timer.|Timer for {minutes} minutes, please.", "status"),
        _tool("set_alarm: alarm", "Set an alarm clock.", "hour:number", "Set an alarm for {hour}.|Wake me with an alarm at {hour}.", "status"),
        _tool("play_song: song", "Play a song by its title.", "title:thing", "Play the song \"{title}\".|I want to hear the song {title}.|Play song {title}.", "status"),
        _tool("book_table: table", "Book a table in a restaurant.", "restaurant:name people:number",
              "Book a table at {restaurant} for {people} people.|Reserve a table for {people} at {restaurant}.", "status code"),
        _tool("book_flight: flight", "Book a flight between two cities.", "origin:place destination:place",
              "Book a flight from {origin} to {destination}.|I need a flight from {origin} to {destination}.", "status price"),
        _tool("find_train: train", "Find a train connection.", "start:place end:place",
              "Find a train from {start} to {end}.|Which train goes from {start} to {end}?", "train departure"),
        _tool("convert_currency: currency", "Convert an amount of money to another currency.", "amount:number currency:currency",
              "Convert {amount} to the currency {currency}.|Change {amount} into currency {currency}.", "amount rate"),
        _tool("translate: translate", "Translate a word into a language.", "word:thing language:language",
              "Translate {word} into {language}.|Translate \"{word}\" to {language}.", "translation"),
        _tool("create_note: note", "Create a note with some text.", "text:text", "Create a note: {text}|Make a note that says \"{text}\".|Note: {text}", "status id"),
        _tool("add_event: event", "Add an event to the calendar.", "title:text day:day", "Add the event \"{title}\" on {day}.|New event on {day}: {title}", "status"),
        _tool("turn_on_light: light", "Turn on the light in a room.", "room:thing", "Turn on the light in the {room}.|Light on in the {room}, please.", "status"),
        _tool("get_stock_price: stock", "Get the price of a stock.", "symbol:code", "What is the stock price of {symbol}?|How is the stock {symbol}?|Price of stock {symbol}?", "price"),
        _tool("search_web: search", "Search the web.", "query:text", "Search the web for \"{query}\".|Search for {query}|Do a web search: {query}", "result"),
        _tool("get_population: population", "Population of a city.", "city:place", "What is the population of {city}?|Population of {city}?", "population"),
        _tool("order_pizza: pizza", "Order a pizza.", "topping:thing count:number", "Order {count} pizza with {topping}.|I want {count} pizzas with {topping}.", "status price"),
        _tool("get_distance: distance", "Distance between two places.", "a:place b:place", "What is the distance from {a} to {b}?|Distance between {a} and {b}?", "distance"),
        _tool("find_restaurant: restaurant", "Find a restaurant in a city.", "city:place", "Find a restaurant in {city}.|Which restaurant is good in {city}?", "restaurant"),
        _tool("call_contact: call", "Call a person on the phone.", "person:name", "Call {person}.|Please call {person} on the phone.", "status"),
        _tool("get_user: user", "Look up a user by id.", "id:number", "Look up user {id}.|Who is user {id}?|Show me the user with id {id}.", "name city"),
        _tool("roll_dice: dice", "Roll a dice.", "sides:number", "Roll a dice with {sides} sides.|Roll the dice with {sides} sides.", "value"),
        _tool("open_file: file", "Open a file by name.", "path:path", "Open the file {path}.|Show me the file {path}.", "size"),
        _tool("get_news: news", "Get the news about a topic.", "topic:thing", "What is the news about {topic}?|News about {topic}?|Give me the news about {topic}.", "news"),
        _tool("set_temperature: temperature", "Set the temperature of the heating.", "degrees:number", "Set the temperature to {degrees}.|Temperature {degrees}, please.", "status"),
    ),
    "heldout": (
        _tool("fetch_tide: tide", "Fetch the tide table of a harbour.", "harbour:place", "When is the tide in {harbour}?|Tide at {harbour}?", "tide level"),
        _tool("get_air_quality: air", "Get the air quality in a town.", "town:place", "How is the air in {town}?|What is the air quality in {town}?", "quality"),
        _tool("reserve_hotel: hotel", "Reserve a hotel room.", "hotel_name:name nights:number",
              "Reserve the hotel {hotel_name} for {nights} nights.|I need the hotel {hotel_name} for {nights} nights.", "status"),
        _tool("track_parcel: parcel", "Track a parcel by its tracking code.", "tracking_code:code", "Where is the parcel {tracking_code}?|Track parcel {tracking_code}.", "location"),
        _tool("exchange_rate: exchange", "Get the exchange rate of a currency.", "iso_code:currency", "What is the exchange rate of {iso_code}?|Exchange rate for {iso_code}?", "rate"),
        _tool("rent_bike: bike", "Rent a bike in a city.", "location:place", "Rent a bike in {location}.|I want to rent a bike in {location}.", "status bike"),
        _tool("water_garden: garden", "Water the garden for some minutes.", "duration:number", "Water the garden for {duration} minutes.|Please water my garden for {duration} minutes.", "status"),
        _tool("lookup_employee: employee", "Look up an employee by number.", "employee_id:number", "Look up employee {employee_id}.|Which employee has the number {employee_id}?", "employee office"),
        _tool("get_recipe: recipe", "Find a recipe with an ingredient.", "ingredient:thing", "Find a recipe with {ingredient}.|I need a recipe with {ingredient}.", "recipe"),
        _tool("post_comment: comment", "Post a comment as a person.", "author:name body:text", "Post a comment by {author}: {body}|Comment from {author}: {body}", "status"),
        _tool("ferry_schedule: ferry", "Find a ferry between two ports.", "from_port:place to_port:place",
              "Is there a ferry from {from_port} to {to_port}?|Find a ferry from {from_port} to {to_port}.", "ferry"),
        _tool("lock_gate: gate", "Lock a gate.", "gate_id:number", "Lock gate {gate_id}.|Please lock the gate {gate_id}.", "status"),
        _tool("museum_hours: museum", "Opening hours of the museum in a city.", "city_name:place", "When does the museum in {city_name} open?|Museum hours in {city_name}?", "opens closes"),
        _tool("phone_prefix: prefix", "Get the phone prefix of a town.", "place_name:place", "What is the phone prefix of {place_name}?|Phone prefix for {place_name}?", "prefix"),
        _tool("charge_car: charge", "Charge the electric car.", "percent:number", "Charge the car to {percent} percent.|Please charge my car to {percent} percent.", "status"),
        _tool("invite_guest: invite", "Invite a guest to an event.", "guest:name occasion:text", "Invite {guest} to \"{occasion}\".|Please invite {guest}: {occasion}", "status"),
        _tool("sunrise: sunrise", "Time of the sunrise in a city.", "where:place", "When is the sunrise in {where}?|Sunrise in {where}?", "sunrise"),
        _tool("get_invoice: invoice", "Get an invoice by its number.", "invoice_number:number", "Show me invoice {invoice_number}.|Get the invoice {invoice_number}.", "total"),
    ),
}

_NOUNS = (
    "weather temperature price stock address email phone schedule menu score balance status level speed height weight size rating review "
    "ticket order account contract lesson grade course book film photo map route traffic bus tram parking fuel battery water snow rain "
    "wind forecast tax salary budget loan deposit coupon discount offer stockroom delivery shipment package letter document report "
    "history record profile contact calendar reminder task project team player league match concert artist album lyric podcast channel "
    "video game level quest recipe ingredient calorie vitamin doctor clinic pharmacy medicine dose allergy pet vet shelter breed tree "
    "flower seed soil harvest farm market shop brand store product warranty manual version license server domain backup disk printer "
    "camera sensor door window heater fan lamp oven fridge"
).split()
_VERBS = "get find fetch lookup check read show query search list load".split()
_HOLDERS: dict[str, tuple[str, ...]] = {
    "place": ("city", "place", "town", "location", "area", "station", "where"),
    "name": ("person", "name", "user", "owner", "customer", "player", "who"),
    "number": ("id", "number", "count", "code", "level", "year", "room"),
    "thing": ("item", "object", "product", "word", "kind", "topic"),
    "code": ("code", "key", "symbol", "reference"),
}
_ASKED = (
    "What is the {noun} of {{{p}}}?", "What is the {noun} for {{{p}}}?", "Tell me the {noun} of {{{p}}}.", "Show me the {noun} for {{{p}}}.",
    "I need the {noun} of {{{p}}}.", "{Noun} of {{{p}}}?", "{Noun} for {{{p}}}, please.", "Can you find the {noun} for {{{p}}}?", "Give me the {noun} of {{{p}}}.",
    "Check the {noun} for {{{p}}}.", "How is the {noun} of {{{p}}}?", "Look up the {noun} for {{{p}}}.", "Which {noun} does {{{p}}} have?",
)
_ASKED_PLACE = ("What is the {noun} in {{{p}}}?", "How is the {noun} in {{{p}}}?", "Tell me the {noun} in {{{p}}}.", "{Noun} in {{{p}}}?", "Find the {noun} in {{{p}}}.")
_SECOND = {"number": ("with {q} {{{q}}}", "and {q} {{{q}}}"), "name": ("for {{{q}}}", "by {{{q}}}"), "place": ("from {{{q}}}", "near {{{q}}}"),
           "thing": ("with {{{q}}}",), "code": ("with {q} {{{q}}}",)}
_DESCRIBED = (
    "Get the {noun} for a {p}.", "Returns the {noun} of a given {p}.", "Look up the {noun} by {p}", "Find the {noun} of the {p}.", "{Noun} of a {p}.",
    "Tells the current {noun} for one {p}.", "Use this for the {noun}.", "Gives you the {noun}", "Reads the {noun} of any {p}.",
)


def random_tool(rng: random.Random) -> Tool:
    """A tool about a random noun, a made-up one half of the time."""
    noun = made_up_word(rng) if rng.random() < 0.5 else rng.choice(_NOUNS)
    kinds = rng.sample(list(_HOLDERS), 2)
    first = Parameter(_parameter_name(rng, kinds[0]), kinds[0])
    parameters, asked = (first,), rng.choice(_ASKED_PLACE if first.holds == "place" and rng.random() < 0.6 else _ASKED)
    fields = {"noun": noun, "Noun": noun.capitalize() if rng.random() < 0.3 else noun, "p": first.name}
    asked = asked.format(**fields)
    second = Parameter(_parameter_name(rng, kinds[1]), kinds[1], rng.random() < 0.7)
    if rng.random() < 0.35 and second.name != first.name:
        parameters = (first, second)
        if second.required:
            asked = asked.rstrip("?.") + " " + rng.choice(_SECOND[second.holds]).format(q=second.name) + asked[len(asked.rstrip("?.")) :]
    described = rng.choice(_DESCRIBED).format(**fields)
    results = tuple(dict.fromkeys((noun, *(rng.choice(_NOUNS) for _ in range(rng.randint(0, 2))))))
    return Tool(_function_name(rng, noun), described, parameters, (asked,), noun, results)


def _parameter_name(rng: random.Random, holds: str) -> str:
    if rng.random() < 0.25:
        return made_up_word(rng)
    plain = rng.choice(_HOLDERS[holds])
    return f"{rng.choice(_NOUNS)}_{plain}" if rng.random() < 0.2 else plain


def _function_name(rng: random.Random, noun: str) -> str:
    verb = rng.choice(_VERBS)
    return rng.choices(
        (f"{verb}_{noun}", f"{noun}_{rng.choice(('lookup', 'info', 'service', 'finder', 'data'))}", noun, verb + noun.capitalize(),
         f"{verb}_{rng.choice(_NOUNS)}_{noun}", f"{verb}_{made_up_word(rng)}"),
        (10, 4, 2, 2, 2, 1),
    )[0]


def value(rng: random.Random, split: Split, holds: str) -> Any:
    """A random argument for a parameter."""
    if holds == "number":
        return number(rng)
    if holds == "text":
        return rng.choice(_TEXTS if split == "train" and rng.random() < 0.7 else _TEXTS_HELDOUT) if split == "heldout" else _text(rng)
    if holds == "code":
        return "".join(rng.choice("ABCDEFGHKLMNPRSTXYZ") for _ in range(rng.randint(2, 4))) + str(rng.randrange(10, 1000))
    if holds == "currency":
        return rng.choice("USD EUR GBP JPY CHF SEK NOK PLN".split())
    if holds == "path":
        return f"{thing(rng, split)}.{rng.choice(('txt', 'csv', 'pdf', 'md'))}"
    if holds == "day":
        return rng.choice("Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split())
    if holds in _WORD_LISTS:
        return rng.choice(_WORD_LISTS[holds])
    if holds == "unit":
        return rng.choice(_UNITS)
    return {"place": place, "name": name, "thing": thing}[holds](rng, split)


def _text(rng: random.Random) -> str:
    if rng.random() < 0.5:
        return rng.choice(_TEXTS)
    return " ".join(made_up_word(rng) if rng.random() < 0.3 else thing(rng, "train") for _ in range(rng.randint(2, 4)))


def schema(rng: random.Random, tool: Tool) -> dict[str, Any]:
    """The tool as an OpenAI client sends it; details that clients leave out are left out at times."""
    properties: dict[str, Any] = {}
    detailed = rng.random() < 0.3
    for parameter in tool.parameters:
        properties[parameter.name] = {"type": parameter.type}
        if detailed:
            properties[parameter.name]["description"] = rng.choice((f"The {parameter.name}", f"{parameter.name} to use", f"Which {parameter.name}"))
        if parameter.holds == "unit":
            properties[parameter.name]["enum"] = list(_UNITS[:2])
    parameters: dict[str, Any] = {"type": "object", "properties": properties}
    if rng.random() < 0.85:
        parameters["required"] = [parameter.name for parameter in tool.parameters if parameter.required]
    if rng.random() < 0.05:
        parameters["additionalProperties"] = False
    function: dict[str, Any] = {"name": tool.name, "description": tool.description, "parameters": parameters}
    if rng.random() < 0.05:
        del function["description"]
    return {"type": "function", "function": function}


def draw(rng: random.Random, split: Split, count: int) -> list[Tool]:
    """`count` tools with different names and topics."""
    chosen: dict[str, Tool] = {}
    while len(chosen) < count:
        tool = rng.choice(WRITTEN[split]) if split == "heldout" or rng.random() < 0.4 else random_tool(rng)
        if all(tool.topic != other.topic and tool.topic not in other.name for other in chosen.values()):
            chosen.setdefault(tool.name, tool)
    return list(chosen.values())
