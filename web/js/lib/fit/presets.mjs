// @ts-check
/**
 * The first row of Train Wan LoRA: a preset sets clip size, block swap and steps in the training's widgets. The server plans
 * them for the model and the GPU. The row has no value of its own, so it does not appear in workflows and prompts.
 */

import { element, mark, write } from "../page/dom.mjs";
import { asOneStep, turn } from "../page/graph.mjs";
import { widgetsOf } from "../page/ids.mjs";
import { message } from "../page/routes.mjs";
import { told } from "../page/server_sentences.mjs";
import { addWidget, fitted, MARGINS } from "../page/widget.mjs";
import { counted, t } from "../page/words.mjs";
import { known } from "../run/format.mjs";
import { ownersOf, requestedSizes, sourceOf, trainingOf } from "./asked.mjs";

/**
 * @typedef {import("../page/graph.mjs").GraphNode} GraphNode
 * @typedef {import("./asked.mjs").Training} Training
 * @typedef {Record<string, number>} Values by widget name
 * @typedef {{ settings?: Values, seconds?: number | null, card?: string | null, reason?: string }} Filled the server's answer
 */

const NAME = "wan_trainer_preset";
/** Height of the row without its message, in pixels. */
const ROW = 26;

export class PresetRow {
  /** @param {GraphNode} node a new Train Wan LoRA @param {import("../page/routes.mjs").Routes} routes */
  constructor(node, routes) {
    this.node = node;
    this.routes = routes;
    /** The training right after a preset was applied; empty if no preset is shown. */
    this.key = "";
    const names = /** @type {string[]} */ (widgetsOf("TrainLoRA").steps?.wan_presets ?? []);
    this.choice = element(
      "select",
      {
        "aria-label": t("preset"),
        title: t(
          "Fills frames, width, height, steps and blocks_to_swap with values planned for this model and GPU. Choose one to begin with, then change any value. Default: none, all values stay.",
        ),
        onchange: () => this.choose(),
      },
      element("option", { value: "" }, t("choose one …")),
      ...names.map((name) => element("option", { value: name }, titleOf(name))),
    );
    this.line = element("p", { class: "wan-preset-line", role: "status", hidden: true });
    this.element = element(
      "div",
      { class: "wan-card", "data-card": "preset" },
      element("label", {}, t("preset"), this.choice),
      this.line,
    );
    const high = () => ROW + MARGINS + (this.line.hidden ? 0 : this.line.offsetHeight + 6);
    addWidget(node, this.element, { name: NAME, least: high, most: high });
    node.widgets = [.../** @type {any[]} */ (node.widgets).splice(-1), ...(node.widgets ?? [])];
  }

  /** Called after changes of the graph: hides a preset whose values were changed. */
  look() {
    const training = this.key ? trainingOf(this.node) : null;
    if (!this.key || (training && keyOf(training) === this.key)) return;
    this.key = "";
    this.choice.value = "";
    this.say("");
  }

  async choose() {
    const preset = this.choice.value;
    this.key = "";
    const training = trainingOf(this.node);
    if (!preset) this.say("");
    else if (!training) {
      this.say(
        t("Connect Load Wan Model and a dataset first: a preset is planned for them."),
        true,
      );
    } else {
      this.say(t("Planning …"));
      await this.plan(preset, training);
    }
  }

  /** @param {string} preset @param {Training} training */
  async plan(preset, training) {
    /** @type {Filled} */
    let found;
    try {
      const asked = { ...training.asked, sizes: requestedSizes(training), preset };
      found = /** @type {Filled} */ (await this.routes.plan(asked));
    } catch (error) {
      found = { reason: message(error) };
    }
    const current = trainingOf(this.node);
    if (this.choice.value !== preset || !current) return;
    const values = found.settings ?? {};
    const linked = Object.keys(values).filter((name) => !placesOf(current, name).length);
    if (!found.settings) this.say(told(found.reason ?? ""), true);
    else if (linked.length) {
      const names = linked.join(", ");
      this.say(t("Not filled: {names} come from a link or a settings file.", { names }), true);
    } else {
      put(current, values);
      this.key = keyOf(/** @type {Training} */ (trainingOf(this.node)));
      this.say(sentence(found));
    }
  }

  /** @param {string} text @param {boolean} [bad] whether it failed */
  say(text, bad = false) {
    fitted(this.node, true, () => {
      write(this.line, text);
      this.line.hidden = !text;
      mark(this.line, "data-state", bad ? "short" : "fits");
    });
  }
}

/** Translated name of a preset. @param {string} name such as "16 GB, good" @returns {string} */
export function titleOf(name) {
  const [size, look] = name.split(", ");
  switch (look) {
    case "quick look":
      return t("{size}, quick look", { size });
    default:
      return t("{size}, good", { size });
  }
}

/** The applied values in one line. @param {Filled} found @returns {string} */
export function sentence({ settings = {}, seconds, card }) {
  const { width, height, num_frames: frames, steps, blocks_to_swap: blocks } = settings;
  const size = `${width}x${height}`;
  const what = [
    frames > 1 ? t("{frames} frames of {size}", { frames, size }) : t("Images of {size}", { size }),
    blocks > 0 ? counted(blocks, "1 block in RAM", "{n} blocks in RAM") : "",
    counted(steps, "1 step", "{n} steps"),
  ]
    .filter(Boolean)
    .join(", ");
  if (!known(seconds) || !card) return what;
  return t("{what}: about {time} (predicted for {card})", { what, time: roughly(seconds), card });
}

/** @param {number} seconds @returns {string} minutes, rounded, at least 1 */
function roughly(seconds) {
  const all = Math.max(Math.round(seconds / 60), 1);
  const [hours, minutes] = [Math.floor(all / 60), all % 60];
  return hours ? t("{hours} h {minutes} min", { hours, minutes }) : t("{minutes} min", { minutes });
}

/** Sets the widgets, as one step of undo. @param {Training} training @param {Values} values */
function put(training, values) {
  asOneStep(training.nodes[0], () => {
    for (const [name, value] of Object.entries(values))
      for (const node of placesOf(training, name)) turn(node, name, value);
  });
}

/** The nodes whose widget a preset sets; a dataset of stills keeps its single frame. @param {Training} training @param {string} name */
function placesOf(training, name) {
  const [trainer] = training.nodes;
  if (["steps", "blocks_to_swap"].includes(name)) return sourceOf(trainer, name) ? [] : [trainer];
  const owners = ownersOf(training, name);
  const isStills = (/** @type {GraphNode} */ node) =>
    node.widgets?.some((widget) => widget.name === "num_frames" && widget.value === 1);
  const clips = name === "num_frames" ? owners.filter((node) => !isStills(node)) : owners;
  return clips.length ? clips : owners;
}

/** Key of the facts that the message depends on. @param {Training} training */
function keyOf(training) {
  const { chain, settings, preview, train } = training.asked;
  const own = ["steps", "blocks_to_swap", "rank", "expert"].map((name) => train[name]);
  return JSON.stringify([chain, settings, preview, own, requestedSizes(training)]);
}
