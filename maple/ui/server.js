// Meeting the server: what it serves, whether it is there yet, and whether it lets this page in.
import { loading, model, properties } from "./api.js";
import { explain } from "./answers.js";
import { desk, notice, redraw, say } from "./desk.js";
import { button, byId, counted, element } from "./dom.js";
import { openSettings, showDefaults } from "./settings.js";
import { store } from "./store.js";

const AGAIN = 2000; // ms between looks at a server that is still loading

// Asks until the model is there.
export async function meet() {
  try {
    const card = await model(store.key);
    byId("model-name").textContent = card.id;
    byId("model").hidden = false;
    desk.window = card.max_model_len;
    if (desk.window === null) await waitForModel();
    else await meetModel(card);
  } catch (error) {
    say(explain(error));
    notice(`${explain(error)} `, button("Try again", meet));
    if (error.status === 401) openSettings(store, desk.current, { asksForKey: true });
  }
}

async function waitForModel() {
  const now = await loading();
  const share = now?.total ? ` ${now.phase}: ${Math.floor((100 * now.done) / now.total)} %.` : "";
  say("The model is loading…");
  notice(`The model is loading.${share} Questions are kept, and sent when it is there.`);
  setTimeout(meet, AGAIN);
}

async function meetModel(card) {
  desk.properties = await properties(store.key);
  showDefaults(desk.properties);
  drawFacts(card);
  if (byId("status").textContent === "The model is loading…") {
    say("");
    notice("");
  }
  if (!desk.current) redraw();
}

function drawFacts(card) {
  const { params } = desk.properties.default_generation_settings;
  const facts = {
    Model: card.id,
    Context: counted(desk.window, "token"),
    "At once": counted(desk.properties.total_slots, "answer"),
    Sampling: `temperature ${params.temperature}, top p ${params.top_p}, top k ${params.top_k}`,
    Server: desk.properties.build_info,
  };
  byId("facts-list").replaceChildren(...Object.entries(facts).flatMap(([name, fact]) => [element("dt", {}, name), element("dd", {}, fact)]));
  byId("version").textContent = desk.properties.build_info;
}
