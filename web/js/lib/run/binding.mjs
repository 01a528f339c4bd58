// @ts-check
/**
 * The run that a node shows before any message (after a reload, in a second browser, after a restart), and the nodes
 * that a message is for: every page gets all messages, and node ids repeat over graphs. Pure.
 */

/**
 * @typedef {import("../page/routes.mjs").Summary} Summary
 * @typedef {import("./status.mjs").Status} Status
 * @typedef {{ id: string, name: string | null, run: string | null, queued?: Iterable<string> }} Place a node that trains:
 *   its run_name, null when it comes over a wire and the page cannot know it; the run it shows; its names when it was queued
 */

/**
 * What is the same for names that some system takes for one, by case or by normal form: name_key of wan_core/files.
 * @param {string} name
 */
function key(name) {
  return name.normalize("NFKC").toUpperCase().toLowerCase().normalize("NFKC");
}

/**
 * Whether a run's folder is one that `name` leads to: the name itself, or with a number for each change of the job.
 * @param {string} run
 * @param {string} name
 */
export function belongs(run, name) {
  const [own, asked] = [key(run), key(name)];
  if (own === asked) return true;
  return own.startsWith(`${asked}_`) && /^\d{3,}$/.test(own.slice(asked.length + 1));
}

/**
 * The live run of that name, else the last changed one. Nodes of one name, such as the two experts of a pair, are
 * distinguished by the training node and the expert.
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
 * The nodes of the page that show what a message says about a run: the node that trains it, when its run_name leads there,
 * or did when it was queued; nodes that show the run already (a node renamed while it trains); and for a run of another
 * graph, or started without one, those whose run_name leads to it, an exact name before a numbered one. The node's id
 * alone says nothing.
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

/** The graph of each queue entry, as far as messages have said. */
export class Prompts {
  constructor() {
    /** Queue entries of this page. @type {Set<string>} */
    this.mine = new Set();
    /** The graph of each queue entry. @type {Map<string, string>} */
    this.graphs = new Map();
  }

  /** Only the page that queued an entry receives its start. @param {unknown} prompt */
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
   * Whether a message comes from the graph on the page. Graphs of old frontends have no id: then whether this page queued.
   * @param {{ prompt_id?: string, graph?: string }} message
   * @param {string | undefined} graph id of the graph on the page
   */
  isHere(message, graph) {
    const prompt = message.prompt_id ?? "";
    const from = isId(message.graph) ? message.graph : this.graphs.get(prompt);
    return from && isId(graph) ? from === graph : this.mine.has(prompt);
  }
}

/** Graphs that never got an id are all called by zeros. @param {unknown} graph @returns {graph is string} */
export function isId(graph) {
  return Boolean(graph) && !/^[0-]+$/.test(String(graph));
}

/** @param {Set<string> | Map<string, string>} known in the order they came */
function forgetOldest(known) {
  if (known.size > MOST_PROMPTS) known.delete(known.keys().next().value ?? "");
}
