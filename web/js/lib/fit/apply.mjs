// @ts-check
/** Applies a suggestion: sets its widgets, or inserts Fp8 / Int8 Quantize between the model and the trainer. */

import { asOneStep } from "../page/graph.mjs";
import { kindOf } from "../page/ids.mjs";
import { ownersOf } from "./asked.mjs";

/**
 * @typedef {import("../page/graph.mjs").GraphNode} GraphNode
 * @typedef {import("./asked.mjs").Training} Training
 * @typedef {import("./sentences.mjs").Settings} Settings
 */

const QUANTIZE = "Fp8Quantize";
const SCHEME = "scheme";
const ALWAYS = 0;
/** Gap between the trainer and a new node above it, including the node's title, in canvas pixels. */
const APART = 70;

/** Whether the canvas has a widget for every setting. @param {Training} training @param {Settings} settings */
export function canApply(training, settings) {
  return Object.keys(settings).every(
    (name) => name === SCHEME || ownersOf(training, name).length > 0,
  );
}

/**
 * @param {Training} training
 * @param {Settings} settings
 * @param {(kind: string) => GraphNode | null} create creates a node outside any graph
 */
export function apply(training, settings, create) {
  asOneStep(training.nodes[0], () => {
    for (const [name, value] of Object.entries(settings)) {
      if (name === SCHEME) quantize(training.nodes[0], String(value), create);
      else for (const node of ownersOf(training, name)) turn(node, name, value);
    }
  });
}

/** Sets a widget, but never enlarges a clip. @param {GraphNode} node @param {string} name @param {number | string | boolean} value */
function turn(node, name, value) {
  const widget = node.widgets?.find((one) => one.name === name);
  if (!widget || (typeof value === "number" && Number(widget.value) <= value)) return;
  widget.value = value;
  widget.callback?.(value);
  node.setDirtyCanvas?.(true, true);
}

/** @param {GraphNode} trainer @param {string} scheme @param {(kind: string) => GraphNode | null} create */
function quantize(trainer, scheme, create) {
  const slot = trainer.inputs?.findIndex((input) => input.name === "model") ?? -1;
  const above = trainer.getInputNode?.(slot);
  const kept = kindOf(above ?? {}) === QUANTIZE ? above : null; // it exists, but is bypassed
  if (kept) kept.mode = ALWAYS;
  const node = kept ?? between(trainer, slot, create(QUANTIZE));
  const widget = node?.widgets?.find((/** @type {any} */ one) => one.name === SCHEME);
  if (!widget) return;
  widget.value = scheme;
  widget.callback?.(scheme);
  node?.setDirtyCanvas?.(true, true);
}

/** @param {GraphNode} trainer @param {number} slot @param {GraphNode | null} made */
function between(trainer, slot, made) {
  const { graph } = trainer;
  const link = trainer.getInputLink?.(slot);
  const from = link && graph?.getNodeById(link.origin_id);
  if (!made || !graph || !from) return null;
  const [left, top] = trainer.pos ?? [0, 0];
  made.pos = [left, top - (made.size?.[1] ?? 0) - APART];
  graph.add?.(made);
  from.connect?.(link.origin_slot, made, 0);
  made.connect?.(0, trainer, slot);
  return made;
}
