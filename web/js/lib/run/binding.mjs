// @ts-check
/**
 * Finds the run that a node shows before any message (after a reload, in a second browser, after a restart), and the nodes
 * that a message concerns: every page receives all messages, and different graphs use the same node ids. Pure.
 */

/**
 * @typedef {import("../page/routes.mjs").Summary} Summary
 * @typedef {import("./status.mjs").Status} Status
 * @typedef {{ id: string, name: string | null, run: string | null, queued?: Iterable<string> }} Place a Train Wan LoRA:
 *   `name`: its run_name, null if the input is linked; `run`: the shown run; `queued`: values of run_name at queueings
 */

/**
 * Key of a file name, equal for names that differ only in case or Unicode normal form: name_key of wan_core/files.
 * @param {string} name
 */
function key(name) {
  return name.normalize("NFKC").toUpperCase().toLowerCase().normalize("NFKC");
}

/**
 * Whether a run's folder belongs to `name`: the name itself, or the name with the number that a changed job adds.
 * @param {string} run
 * @param {string} name
 */
export function belongs(run, name) {
  const [own, asked] = [key(run), key(name)];
  if (own === asked) return true;
  return own.startsWith(`${asked}_`) && /^\d{3,}$/.test(own.slice(asked.length + 1));
}

/**
 * The live run with a name, else the last changed one. Several nodes may have the same name, for example for the experts of
 * a pair; then node id and expert decide.
 * @param {Summary[]} runs
 * @param {string} name the node's run_name
 * @param {{ id?: string, others?: string[], expert?: unknown }} node its id, those of the graph's other trainers, its expert
 * @returns {Summary | null}
 */
export function runOfNode(runs, name, { id = "", others = [], expert } = {}) {
  const alike = runs.filter((run) => belongs(String(run.id), name));
  const spelled = alike.filter((run) => String(run.id).startsWith(name));
  const led = spelled.length ? spelled : alike;
  const free = led.filter(
    (run) => !run.live || run.node === id || !others.includes(run.node ?? ""),
  );
  const own = free.filter((run) => run.expert === expert);
  const order = (/** @type {Summary} */ run) => (run.live ? Number.MAX_VALUE : (run.updated ?? 0));
  return (own.length ? own : free).sort((a, b) => order(b) - order(a))[0] ?? null;
}

/**
 * The nodes of the page that show a message about a run: the node that trains it, if its run_name, now or at queueing,
 * belongs to the run; nodes that already show the run; and, for a run of another graph or without graph, nodes whose
 * run_name belongs to the run, an exact name before a numbered one. A node id alone is not enough.
 * @param {Status} status
 * @param {Place[]} places
 * @param {boolean} here whether the message comes from the graph on the page
 * @returns {string[]} ids
 */
export function takers(status, places, here) {
  const run = status.run;
  if (!run) return [];
  const shown = places.filter((place) => place.run === run);
  const led = places.filter(({ name }) => name !== null && belongs(run, name));
  const asked = places.filter(
    ({ name, queued }) =>
      here && (name === null || [...(queued ?? [])].some((was) => belongs(run, was))),
  );
  const own = [...led, ...asked].filter(({ id }) => id === String(status.node));
  const exact = led.filter(({ name }) => name === run);
  const others = own.length || shown.length ? [] : exact.length ? exact : led;
  return [...new Set([...own, ...shown, ...others].map(({ id }) => id))];
}

const MOST_PROMPTS = 1000;

/** Graphs of queue entries, learned from messages. */
export class Prompts {
  constructor() {
    /** Ids of queue entries of this page. @type {Set<string>} */
    this.mine = new Set();
    /** Queue entry -> id of its graph. @type {Map<string, string>} */
    this.graphs = new Map();
  }

  /** Called at the start of a queue entry; ComfyUI tells only the page that queued it. @param {unknown} prompt */
  started(prompt) {
    if (prompt) this.mine.add(String(prompt));
    forgetOldest(this.mine);
  }

  /** @param {{ prompt_id?: string, graph?: string }} message */
  learn({ prompt_id, graph }) {
    if (prompt_id && isId(graph)) this.graphs.set(prompt_id, graph);
    forgetOldest(this.graphs);
  }

  /**
   * Whether a message comes from the graph on the page. Old frontends have no graph ids; then, whether this page queued it.
   * @param {{ prompt_id?: string, graph?: string }} message
   * @param {string | undefined} graph id of the graph on the page
   */
  isHere(message, graph) {
    const prompt = message.prompt_id ?? "";
    const from = isId(message.graph) ? message.graph : this.graphs.get(prompt);
    return from && isId(graph) ? from === graph : this.mine.has(prompt);
  }
}

/** Whether a graph has an id; a graph without one has only zeros. @param {unknown} graph @returns {graph is string} */
export function isId(graph) {
  return Boolean(graph) && !/^[0-]+$/.test(String(graph));
}

/** @param {Set<string> | Map<string, string>} known oldest first */
function forgetOldest(known) {
  if (known.size > MOST_PROMPTS) known.delete(known.keys().next().value ?? "");
}
