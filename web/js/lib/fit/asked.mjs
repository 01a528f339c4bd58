// @ts-check
/**
 * Collects a training from the canvas before it is queued: the nodes that feed a Train Wan LoRA, and their widgets. Pure.
 */

import { changedSince } from "../cards/card_facts.mjs";
import { kindOf } from "../page/ids.mjs";

/**
 * @typedef {import("../page/graph.mjs").GraphNode} GraphNode
 * @typedef {[width: number, height: number, frames: number]} Size
 * @typedef {{ chain: [string, Record<string, unknown>][], settings: Record<string, unknown> | null,
 *   train: Record<string, unknown>, sizes: Size[], slider?: boolean, folders?: string[], files?: Record<string, unknown>[], preview: Size | null, prompts?: [text: string, trigger: string],
 *   preview_size?: string, pictured?: boolean, loras?: Record<string, unknown>[], run?: Record<string, unknown> }} Asked the
 *   request to the server; `prompts` may contain sizes; `pictured`: whether previews start from a picture; `loras`: widgets of
 *   the Wan LoRA File nodes in previews, in order; `run`: the widgets that decide the run
 * @typedef {{ asked: Asked, nodes: GraphNode[], datasets: GraphNode[] }} Training `nodes`: all visited nodes, the trainer
 *   first; `datasets`: nodes whose widgets set the clip size
 */

const LOADER = "LoadWanModel";
const QUANTIZE = "Fp8Quantize";
/** Nodes with a model as input and output. */
const CHANGES = ["WanPrecisionPolicy", QUANTIZE, "SplitAcrossGPUs", "AddFrozenLora"];
/** Node with a LoRA for previews. */
const LORA = "WanLoraFile";
/** Node that repeats settings with different values. */
const SWEEP = "WanSweepSettings";
const FROM_FILE = "WanDatasetFromFile";
/** Takes a dataset and gives it with captions. */
const CAPTIONS = "WanSaveCaptions";
/** In place of clips; a step of it predicts more often. */
const SLIDER = "WanSliderPrompts";
const DATASETS = ["WanVideoDataset", FROM_FILE, "WanSyntheticDataset", SLIDER];
/** Names of other trainers' settings files, which contain sizes; a JSON file may be a list of clips instead. */
const SETTINGS_FILE = /[.](toml|ya?ml)$/i;
const MAYBE_SETTINGS = /[.]json$/i;
/** Nodes whose widgets and links change a plan. */
export const KINDS = [
  ...[LOADER, ...CHANGES, ...DATASETS, CAPTIONS],
  ...["CacheLatents", "WanTrainSettings", "WanPreviewSettings", LORA, "TrainLoRA"],
];
/** LiteGraph's modes of a bypassed and of a muted node. */
const BYPASSED = 4;
const MUTED = 2;
/** Size limit of a request. */
const MOST_SIZES = 50;
/** Maximum length of a chain of nodes; a longer one is a cycle. */
const LONGEST = 50;

/**
 * The training of a Train Wan LoRA; null if it is not connected, or the clip sizes are not known yet.
 * @param {GraphNode} trainer
 * @returns {Training | null}
 */
export function trainingOf(trainer) {
  const models = chain(trainer);
  if (models.at(-1)?.kind !== LOADER) return null;
  if (models.slice(0, -1).some(({ kind }) => !CHANGES.includes(kind))) return null;
  const datasets = datasetsOf(trainer);
  const files = datasets.filter(
    (node) => (saysSizes(node) || saysSizes(node, MAYBE_SETTINGS)) && !scannedSizes(node).length,
  );
  const sizes = datasets
    .filter((node) => !files.includes(node))
    .flatMap(sizesOf)
    .slice(0, MOST_SIZES);
  if (!sizes.length && !files.length) return null;
  const folders = datasets.map((node) => String(valuesOf(node).folder ?? "")).filter(Boolean);
  const settings = settingsOf(trainer);
  const previews = sourceOf(trainer, "vae") ? sourceOf(trainer, "validation") : null;
  const loras = previews ? lorasOf(previews) : [];
  const train = valuesOf(trainer);
  if (!sourceOf(trainer, "vae")) train.preview_every_n_steps = 0;
  return {
    asked: {
      chain: models.map(({ kind, node }) => /** @type {any} */ ([kind, valuesOf(node)])).reverse(),
      settings: settings ? valuesOf(settings) : null,
      train,
      sizes,
      ...(datasets.some((node) => kindOf(node) === SLIDER) ? { slider: true } : {}),
      ...(folders.length ? { folders } : {}),
      ...(files.length ? { files: files.map(valuesOf) } : {}),
      preview: sourceOf(trainer, "vae") ? (previews ? sizeOf(previews) : [0, 0, 0]) : null,
      ...(previews ? { ...promptsOf(previews), ...leftOpen(previews) } : {}),
      ...(loras.length ? { loras: loras.map(valuesOf) } : {}),
      ...namedRun(trainer, [...models.map(({ node }) => node), ...(settings ? [settings] : [])]),
    },
    nodes: [
      ...[trainer, ...models.map(({ node }) => node), ...datasets],
      ...[settings, previews, ...loras].filter((node) => node !== null),
    ],
    datasets,
  };
}

/**
 * Null if a link or a sweep has values that the canvas does not know.
 * @param {GraphNode} trainer
 * @param {GraphNode[]} others further nodes with relevant widgets
 */
function namedRun(trainer, others) {
  const own = valuesOf(trainer);
  const sweep = sourceOf(trainer, "settings");
  const open = [trainer, ...others].some((node) =>
    node.widgets?.some(({ name }) => sourceOf(node, name)),
  );
  if (open || !own.run_name || (sweep && kindOf(sweep) === SWEEP)) return {};
  return { run: own };
}

/** The sizes set in the datasets' widgets, independent of a scan. @param {Training} training @returns {Size[]} */
export function requestedSizes({ datasets }) {
  return datasets.map(sizeOf).filter(([width, height, frames]) => width && height && frames);
}

/** The node of a training with an unlinked widget of that name. @param {Training} training @param {string} name */
export function ownersOf({ nodes, datasets }, name) {
  const sized = ["width", "height", "num_frames"].includes(name);
  return (sized ? datasets.filter((node) => !saysSizes(node)) : nodes).filter(
    (node) => node.widgets?.some((widget) => widget.name === name) && !sourceOf(node, name),
  );
}

/** @param {GraphNode} trainer @returns {{ kind: string, node: GraphNode }[]} the nodes that change the model, the last one first */
function chain(trainer) {
  const found = [];
  let node = sourceOf(trainer, "model");
  while (node && found.length < LONGEST) {
    found.push({ kind: kindOf(node), node });
    node = sourceOf(node, "model");
  }
  return found;
}

/** The node that loads a trainer's model, or null. @param {GraphNode} trainer @returns {GraphNode | null} */
export function modelOf(trainer) {
  return chain(trainer).at(-1)?.node ?? null;
}

/** The Wan Train Settings of a trainer, also behind sweeps. @param {GraphNode} trainer @returns {GraphNode | null} */
function settingsOf(trainer) {
  let node = sourceOf(trainer, "settings");
  for (let far = 0; node && kindOf(node) === SWEEP && far < LONGEST; far += 1) {
    node = sourceOf(node, "settings");
  }
  return node;
}

/** @param {GraphNode} trainer @returns {GraphNode[]} */
function datasetsOf(trainer) {
  const cache = sourceOf(trainer, "cache");
  if (!cache) return [];
  const found = [];
  let node = kindOf(cache) === "CacheLatents" ? sourceOf(cache, "dataset") : cache;
  while (node && found.length < LONGEST) {
    if (DATASETS.includes(kindOf(node))) found.push(node);
    node = sourceOf(node, kindOf(node) === CAPTIONS ? "dataset" : "append_to");
  }
  return found;
}

/**
 * The node linked to an input, following reroutes and bypassed nodes.
 * @param {GraphNode} node
 * @param {string} input
 * @returns {GraphNode | null} null without a link, or if the node is muted
 */
export function sourceOf(node, input) {
  const slot = node.inputs?.findIndex((one) => one.name === input) ?? -1;
  let found = slot < 0 ? null : (node.getInputNode?.(slot) ?? null);
  for (let far = 0; found && far < LONGEST; far += 1) {
    if (found.mode === MUTED) return null;
    if (found.mode === BYPASSED) found = sourceOf(found, input);
    else if (found.type === "Reroute") found = found.getInputNode?.(0) ?? null;
    else return found;
  }
  return null;
}

/** @param {GraphNode} node @returns {Record<string, unknown>} its own widgets by name; linked ones are skipped */
function valuesOf(node) {
  const plain = (node.widgets ?? []).filter(
    ({ name, value }) =>
      ["string", "number", "boolean"].includes(typeof value) && !sourceOf(node, name),
  );
  return Object.fromEntries(plain.map(({ name, value }) => [name, value]));
}

/** Whether the user has still to choose a folder of clips in this node. @param {GraphNode} node */
export function lacksFolder(node) {
  return valuesOf(node).folder === "";
}

/** Whether the node's file sets the sizes, instead of its widgets. @param {GraphNode} node @param {RegExp} [named] */
function saysSizes(node, named = SETTINGS_FILE) {
  const { file, other_file: other, use_file_settings: follows } = valuesOf(node);
  const isSettings = named.test(String(other || file || "").trim());
  return kindOf(node) === FROM_FILE && follows === true && isSettings;
}

/**
 * The sizes of the last scan if the node's widgets are unchanged since; else the requested size.
 * @param {GraphNode} node
 */
function sizesOf(node) {
  const found = scannedSizes(node);
  return found.length ? found : [sizeOf(node)].filter(([width, , frames]) => width && frames);
}

/** @param {GraphNode} node @returns {Size[]} none before a scan, or after a change of widgets */
function scannedSizes(node) {
  const facts = node.wanTrainerFacts;
  const current = facts && !changedSince(facts.asked, node.widgets ?? []).length;
  const buckets = current && Array.isArray(facts.buckets) ? facts.buckets : [];
  const found = buckets.map((one) => /** @type {Size} */ ([one?.width, one?.height, one?.frames]));
  return found.filter((size) => size.every((side) => Number.isInteger(side) && side > 0));
}

/** The prompts if they may contain settings; other prompts do not change a plan. @param {GraphNode} node */
function promptsOf(node) {
  const { prompts, trigger_word: trigger } = valuesOf(node);
  if (typeof prompts !== "string" || !prompts.includes("--")) return {};
  return { prompts: /** @type {[string, string]} */ ([prompts, String(trigger ?? "")]) };
}

/** @param {GraphNode} previews @returns {GraphNode[]} the Wan LoRA Files above it, the first one first */
function lorasOf(previews) {
  const found = [];
  let node = sourceOf(previews, "loras");
  while (node && kindOf(node) === LORA && found.length < LONGEST) {
    found.unshift(node);
    node = sourceOf(node, "loras");
  }
  return found;
}

/** Size of previews if their widgets do not set it. @param {GraphNode} node */
function leftOpen(node) {
  const { preview_size: size } = valuesOf(node);
  if (typeof size !== "string") return {};
  return { preview_size: size, pictured: Boolean(sourceOf(node, "start_image")) };
}

/** @param {GraphNode} node @returns {Size} */
function sizeOf(node) {
  const values = valuesOf(node);
  const [width, height, frames] = ["width", "height", "num_frames"].map((name) =>
    Math.round(Number(values[name] ?? 0)),
  );
  return [width, height, frames];
}
