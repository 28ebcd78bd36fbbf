// Tools that the page itself answers: a clock and a calculator. Nothing of a call is ever run as code.

function tool(name, description, field, meaning) {
  const parameters = { type: "object", properties: { [field]: { type: "string", description: meaning } }, required: [field] };
  return { type: "function", function: { name, description, parameters } };
}

const ANSWERS = {
  get_time: ({ zone }) => timeIn(String(zone ?? "")),
  calculate: ({ expression }) => ({ result: calculate(String(expression ?? "")) }),
};

export const PAGE_TOOLS = [
  tool("get_time", "The time in a time zone, now.", "zone", "A city or a time zone"),
  tool("calculate", "Computes an arithmetic expression.", "expression", "Numbers with + - * / % ^ and brackets"),
];

// The result of a call as text, or null where the page has no such tool.
export function answerHere({ function: { name, arguments: given } }) {
  const answer = ANSWERS[name];
  if (!answer) return null;
  try {
    return written(answer(JSON.parse(given)));
  } catch (error) {
    return written({ error: error.message });
  }
}

// On one line, with the blanks that models know from Python's JSON.
function written(result) { return JSON.stringify(result, null, 1).replace(/\n */g, " ").replace(/^\{ | \}$/g, (end) => end.trim()); }

function timeIn(place) {
  const wanted = place.trim().replaceAll(" ", "_").toLowerCase();
  const zone = Intl.supportedValuesOf("timeZone").find((name) =>
    [name.toLowerCase(), name.split("/").at(-1).toLowerCase()].includes(wanted)) ?? place;
  return { time: new Intl.DateTimeFormat("en-GB", { timeZone: zone, hour: "2-digit", minute: "2-digit" }).format(new Date()), city: place };
}

const POWERS = { "+": 1, "-": 1, "*": 2, "/": 2, "%": 2, "^": 4 };
const SIGN = 3; // binds its number closer than a product, and less than a power
const COMPUTE = {
  "+": (a, b) => a + b, "-": (a, b) => a - b, "*": (a, b) => a * b, "/": (a, b) => a / b, "%": (a, b) => a % b, "^": (a, b) => a ** b,
};
const LONGEST = 1000; // characters of an expression

export function calculate(text) {
  if (text.length > LONGEST) throw new Error("the expression is too long");
  const marks = text.replace(/[×·]/g, "*").replace(/÷/g, "/").replace(/−/g, "-").match(/(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?|[-+*/%^()]|\S/gi) ?? [];
  let at = 0;

  function operand() {
    const mark = marks[at++];
    if (mark === "-" || mark === "+") return mark === "-" ? -above(SIGN) : above(SIGN);
    if (mark === "(") {
      const inner = above(0);
      if (marks[at++] !== ")") throw new Error("a bracket is not closed");
      return inner;
    }
    if (!/^[\d.]/.test(mark ?? "")) throw new Error(mark ? `${mark} is not understood` : "the expression ends too soon");
    return Number(mark);
  }

  // What binds at least as close as `least`, from here on.
  function above(least) {
    let value = operand();
    while (POWERS[marks[at]] >= Math.max(least, 1)) {
      const mark = marks[at++];
      value = COMPUTE[mark](value, above(mark === "^" ? POWERS[mark] : POWERS[mark] + 1));
    }
    return value;
  }

  const value = above(0);
  if (at < marks.length) throw new Error(`${marks[at]} is not understood`);
  if (!Number.isFinite(value)) throw new Error("there is no such number");
  return value;
}
