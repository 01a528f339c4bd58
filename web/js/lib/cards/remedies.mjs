// @ts-check
/** What can be done about files without a caption, done in the graph: by the dataset node or by its settings node. */

import { asOneStep, turn } from "../page/graph.mjs";
import { kindOf } from "../page/ids.mjs";

/** @typedef {import("../page/graph.mjs").GraphNode} GraphNode */

/** Values of missing_captions (wan_core/dataset/config.py). */
export const SKIP = "skip the file";
export const EMPTY = "empty caption";

const SETTINGS = "WanDatasetSettings";
const ALWAYS = 0;
/** Free space between the dataset node and a settings node put next to it, in pixels of the canvas. */
const APART = 40;

/**
 * Give files without a caption a trigger word as their caption.
 * @param {GraphNode} node a dataset node
 * @param {string} word
 * @returns {boolean} whether that could be done
 */
export function setTriggerWord(node, word) {
  return asOneStep(node, () => turn(node, "trigger_word", word.trim()));
}

/**
 * Choose what happens to files without a caption; a settings node is created where there is none.
 * @param {GraphNode} node a dataset node
 * @param {string} value SKIP or EMPTY
 * @param {(kind: string) => GraphNode | null} create makes a node that is in no graph yet
 * @returns {boolean} whether that could be done
 */
export function setMissingCaptions(node, value, create) {
  return asOneStep(node, () => {
    const slot = node.inputs?.findIndex((input) => input.name === "settings") ?? -1;
    if (slot < 0) return false;
    const linked = node.getInputNode?.(slot) ?? null;
    if (linked && kindOf(linked) !== SETTINGS) return false; // through a node of somebody else
    const settings = linked ?? beside(node, slot, create(SETTINGS));
    if (linked) linked.mode = ALWAYS; // there, and bypassed
    if (settings && !linked) turn(settings, "held_out_ratio", 0); // all other files are trained as before
    return settings !== null && turn(settings, "missing_captions", value);
  });
}

/** @param {GraphNode} node @param {number} slot @param {GraphNode | null} made */
function beside(node, slot, made) {
  if (!made || !node.graph) return null;
  const [left, top] = node.pos ?? [0, 0];
  made.pos = [left - (made.size?.[0] ?? 0) - APART, top];
  node.graph.add?.(made);
  made.connect?.(0, node, slot);
  return made;
}
