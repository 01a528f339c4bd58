// @ts-check
/**
 * Maps ids of our nodes where another pack uses the same id. Each node of ours also has an id of its own,
 * `WanTrainer_<id>`; the one for a graph is chosen here, and all other modules use the short ids.
 */

import { t } from "./words.mjs";

export const PREFIX = "WanTrainer_";

/** The short ids of our nodes. */
export const OURS = [
  ...["AddFrozenLora", "ApplyWanLoRA", "CacheLatents", "Fp8Quantize", "LoadWanModel"],
  ...["PlanMemory", "PrecisionAudit", "SplitAcrossGPUs", "TrainLoRA", "ValidateVideo"],
  ...[
    "WanCacheFromLatents",
    "WanClipFrames",
    "WanDatasetFromFile",
    "WanDatasetFromImages",
    "WanDatasetSettings",
  ],
  ...[
    "WanLoraFile",
    "WanPrecisionPolicy",
    "WanPreviewSettings",
    "WanSaveCaptions",
    "WanSliderPrompts",
    "WanSweepSettings",
    "WanSyntheticDataset",
  ],
  ...["WanTrainSettings", "WanVideoDataset"],
];

/**
 * A node as the server describes it.
 * @typedef {{ python_module?: string, deprecated?: boolean, dev_only?: boolean, output?: unknown[],
 *   input?: Record<string, Record<string, unknown>> }} Definition
 * @typedef {{ type?: string, inputs?: { type?: unknown }[], outputs?: { type?: unknown }[] }} SavedNode
 */

/** Our nodes with a second id, by short id. @type {Map<string, Definition>} */
const ours = new Map();
/** Other packs' nodes that use one of our short ids. @type {Map<string, Definition>} */
const taken = new Map();

/**
 * Finds the owners of the ids. A menu shows a node's second id only if another pack uses the first one.
 * @param {Record<string, Definition>} definitions all nodes of the server, before the page registers them
 */
export function learnIds(definitions) {
  ours.clear();
  taken.clear();
  for (const [name, own] of Object.entries(definitions)) {
    if (!name.startsWith(PREFIX)) continue;
    const short = name.slice(PREFIX.length);
    const other = definitions[short];
    ours.set(short, own);
    if (other?.python_module !== own.python_module) taken.set(short, other ?? {});
    own.deprecated = own.dev_only = !taken.has(short);
  }
}

/** @returns {{ id: string, pack: string }[]} short ids that another pack uses, and its folder */
export function takenIds() {
  return [...taken].flatMap(([id, { python_module: module }]) =>
    module ? [{ id, pack: module.split(".").slice(1).join(".") || module }] : [],
  );
}

/**
 * The short id of one of our classes; empty for another pack's class with that id; otherwise the class name.
 * @param {unknown} type
 * @returns {string}
 */
export function shortId(type) {
  const name = typeof type === "string" ? type : "";
  if (name.startsWith(PREFIX)) return name.slice(PREFIX.length);
  return taken.has(name) ? "" : name;
}

/** @param {{ comfyClass?: string }} node @returns {string} short id of one of our nodes, else empty */
export function kindOf(node) {
  return shortId(node.comfyClass);
}

/**
 * The widgets of one of our nodes, in order, with their options from the server.
 * @param {string} short
 * @returns {Record<string, Record<string, unknown>>}
 */
export function widgetsOf(short) {
  const specs = inputsOf(ours.get(short) ?? {}).map(([name, spec]) => [name, list(spec)[1] ?? {}]);
  const isWidget = (/** @type {any} */ options) =>
    Object.hasOwn(options, "default") && !options.forceInput;
  return Object.fromEntries(specs.filter(([, options]) => isWidget(options)));
}

/** Whether a node is ours. @param {{ comfyClass?: string }} node */
export function isOurs(node) {
  return OURS.includes(kindOf(node));
}

/**
 * Changes the ids in a saved workflow, including subgraphs, to this server's ids. Our nodes are recognised by their sockets.
 * @param {any} workflow
 */
export function renameNodes(workflow) {
  const graphs = [workflow, ...list(workflow?.definitions?.subgraphs)];
  for (const node of graphs.flatMap((graph) => list(graph?.nodes))) {
    const short = ownShortId(node?.type, (own) => hasSockets(node, own));
    if (short) node.type = idHere(short);
  }
}

/**
 * The same for a graph in API format; our nodes are recognised by their input names.
 * @param {any} graph
 */
export function renameClasses(graph) {
  for (const node of Object.values(graph && typeof graph === "object" ? graph : {})) {
    const short = ownShortId(node?.class_type, (own, other) => hasInputs(node, own, other));
    if (short) node.class_type = idHere(short);
  }
}

/** The id of one of our nodes on this server. @param {string} short */
export function idHere(short) {
  return taken.has(short) ? `${PREFIX}${short}` : short;
}

/**
 * The short id of a saved node if it is ours, else empty.
 * @param {unknown} type
 * @param {(own: Definition, other: Definition) => boolean} fits whether it is ours, not the other pack's node of that id
 */
function ownShortId(type, fits) {
  if (typeof type !== "string") return "";
  const short = type.startsWith(PREFIX) ? type.slice(PREFIX.length) : type;
  const own = ours.get(short);
  const other = taken.get(short);
  if (!own) return "";
  return type !== short || !other || fits(own, other) ? short : "";
}

/** Whether a node has a socket of one of this pack's own types. @param {SavedNode} node @param {Definition} own */
function hasSockets(node, own) {
  const types = [...list(own.output), ...inputsOf(own).map(([, spec]) => list(spec)[0])];
  const known = types.filter((type) => String(type).startsWith("WAN_"));
  return [...list(node.inputs), ...list(node.outputs)].some((slot) => known.includes(slot?.type));
}

/** @param {any} node @param {Definition} own @param {Definition} other */
function hasInputs(node, own, other) {
  const names = Object.keys(node.inputs ?? {});
  const known = (/** @type {Definition} */ one) => {
    const all = new Set(inputsOf(one).map(([name]) => name));
    return names.every((name) => all.has(name));
  };
  return known(own) && !known(other);
}

/** @param {Definition} one @returns {[string, unknown][]} */
function inputsOf({ input }) {
  return ["required", "optional"].flatMap((part) => Object.entries(input?.[part] ?? {}));
}

/** @param {any} value @returns {any[]} */
function list(value) {
  return Array.isArray(value) ? value : [];
}

/** Key in sessionStorage of the shown message. */
const SAID = "wan_trainer.taken";

/**
 * Shows, once per browser tab, which packs use our ids.
 * @param {string} summary heading of the message
 * @param {{ add(message: object): void } | undefined} toast ComfyUI's toast manager
 */
export function sayWhoTookIds(summary, toast) {
  const lines = takenIds().map(({ id, pack }) =>
    t(
      "{pack} also has a node called {id}. The node of this pack is {ours} here, and its workflows open with that name.",
      {
        pack,
        id,
        ours: `${PREFIX}${id}`,
      },
    ),
  );
  const detail = lines.join("\n");
  if (!lines.length || sessionStorage.getItem(SAID) === detail) return;
  sessionStorage.setItem(SAID, detail);
  console.info(`[${summary}] ${detail}`);
  toast?.add({ severity: "info", summary, detail, life: 15000 });
}
