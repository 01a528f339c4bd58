// @ts-check
/** The pack's HTTP routes as functions. Ids are never paths; requests that modify something send the pack's header. */

import { learnSentences } from "./server_sentences.mjs";
import { t } from "./words.mjs";

/**
 * @typedef {{ now?: number | null, peak?: number | null, predicted?: number | null, total?: number | null }} Memory
 * @typedef {Memory & { rank?: number | null, host?: string, device: string, name?: string, busy?: number | null, silent?: number | null }} Device
 *   `busy`: utilization in per cent; `silent`: seconds since its rank's last heartbeat
 * @typedef {{ id: string, state: string, step: number, steps: number, reached?: number | null, reason?: string, updated?: number,
 *   loss?: number | null, eval_loss?: number | null, eval_step?: number | null, eval_held_out?: boolean | null, eval_expert?: string,
 *   eval_best?: number | null, eval_best_step?: number | null,
 *   preview?: string | null, best?: number | null,
 *   best_why?: string, seconds_per_step?: number | null, seconds_left?: number | null,
 *   expert?: string, variant?: string, lora_names?: string[], live?: boolean, node?: string | null, can_preview?: boolean,
 *   memory?: Record<string, Memory>, settings?: Record<string, unknown> }} Summary `settings`: those in which runs differ
 * @typedef {{ id: string, step: number, label?: string, prompt?: number, strength?: number | null,
 *   rendering?: string, name?: string, text?: string, seed?: string | null }} Sample
 * @typedef {Omit<Summary, "settings"> & { saves?: { step: number, eval_loss?: number | null }[], samples?: Sample[], devices?: Device[],
 *   chosen?: number | null, in_use?: number | null, has_workflow?: boolean, can_generate?: boolean, settings?: unknown, use?: import("../run/status.mjs").Use[], template?: string }} Detail
 */

const BASE = "/wan_trainer/runs";
/** Maximum length of a refusal (wan_core/errors.py). */
const LONGEST_MESSAGE = 1500;

export class Routes {
  /** @param {(path: string, options?: RequestInit) => Promise<Response>} fetchApi */
  constructor(fetchApi) {
    this.fetchApi = fetchApi;
    /** Settings that are the same in all runs of the newest list. @type {Record<string, unknown>} */
    this.common = {};
  }

  /** @returns {Promise<Summary[]>} newest first */
  async list() {
    const { runs, common } = await this.get(BASE);
    this.common = common ?? {};
    return runs ?? [];
  }

  /** @param {string} run @returns {Promise<Detail>} */
  detail(run) {
    return this.get(place(run));
  }

  /**
   * The lines of a run's metrics from number `since`; early steps only have the numbers of charts.
   * @param {string} run @param {number} since @returns {Promise<import("../run/history.mjs").Answer>}
   */
  metrics(run, since) {
    return this.get(`${place(run)}/metrics?since=${since}&thin=1`);
  }

  /** The same lines with all numbers. @param {string} run @param {number} since @returns {Promise<import("../run/history.mjs").Answer>} */
  lines(run, since) {
    return this.get(`${place(run)}/metrics?since=${since}`);
  }

  /** The end of a run's log. @param {string} run @returns {Promise<string>} */
  async log(run) {
    return String((await this.get(`${place(run)}/log`)).text ?? "");
  }

  /** Bytes that deleting the run frees. @param {string} run @returns {Promise<number | null>} */
  async bytes(run) {
    return (await this.get(`${place(run)}/bytes`)).bytes ?? null;
  }

  /** @param {string} run @returns {Promise<any>} */
  workflow(run) {
    return this.get(`${place(run)}/workflow`);
  }

  /** A workflow that generates with the run's LoRA. @param {string} run @returns {Promise<{ graph: any, note: string[] }>} */
  generate(run) {
    return this.get(`${place(run)}/generate`);
  }

  /** @param {string} run @param {"stop" | "save" | "sample" | "open"} action */
  act(run, action) {
    return this.post(`${place(run)}/${action}`, {});
  }

  /** @param {string} run @param {number} step the saved step to publish as the run's LoRA */
  use(run, step) {
    return this.post(`${place(run)}/use`, { step });
  }

  /** @param {string} run */
  remove(run) {
    return this.post(`${place(run)}/delete`, { confirm: run });
  }

  /** Bytes of the cache, and of the entries that no run needs. @returns {Promise<{ bytes: number, spare: number }>} */
  cached() {
    return this.get("/wan_trainer/cache");
  }

  /** Deletes the cached clips that no run needs. @returns {Promise<{ freed: number }>} */
  trimCache() {
    return this.post("/wan_trainer/cache/trim", { confirm: true });
  }

  /** @param {object} asked the training (fit/asked.mjs) @returns {Promise<import("../fit/sentences.mjs").Plan>} */
  plan(asked) {
    return this.post("/wan_trainer/plan", asked);
  }

  /** @param {Record<string, string>} files texts of another trainer's settings, by name @returns {Promise<any>} */
  settingsFiles(files) {
    return this.post("/wan_trainer/import", { files });
  }

  /** @param {string} scan @param {{ clip: number, before: string, text: string }} asked `before`: the caption on the page */
  caption(scan, asked) {
    return this.post(`${scanPlace(scan)}/caption`, asked);
  }

  /** @param {string} scan @param {{ clip: number, before: object, choice: object }} asked `before`: the choice on the page */
  choose(scan, asked) {
    return this.post(`${scanPlace(scan)}/choice`, asked);
  }

  /** @param {string} scan @param {{ find: string, by: string, captions: number, places: number }} asked with the search's counts */
  replace(scan, asked) {
    return this.post(`${scanPlace(scan)}/replace`, asked);
  }

  /** @param {string} scan @param {number} change number of the change to undo */
  undo(scan, change) {
    return this.post(`${scanPlace(scan)}/undo`, { change });
  }

  /** @param {string} scan @returns {Promise<{ findings?: unknown }>} */
  measure(scan) {
    return this.post(`${scanPlace(scan)}/measure`, {});
  }

  /** @param {string} path */
  async get(path) {
    return answer(await this.fetchApi(path, { cache: "no-store" }));
  }

  /** @param {string} path @param {object} body */
  async post(path, body) {
    const headers = { "Content-Type": "application/json", "X-Wan-Trainer": "1" };
    return answer(
      await this.fetchApi(path, { method: "POST", headers, body: JSON.stringify(body) }),
    );
  }
}

/**
 * Address of a clip, built from the ids alone, independent of addresses in the server's response.
 * @param {string} run
 * @param {string} sample
 */
export function samplePath(run, sample) {
  return `${place(run)}/samples/${encodeURIComponent(sample)}`;
}

/** Route of a scan's captions. @param {string} scan @param {{ clip: number } | { text: string, group?: string }} which */
export function captionsPath(scan, which) {
  const query = new URLSearchParams(
    Object.entries(which).map(([name, value]) => [name, `${value}`]),
  );
  return `${scanPlace(scan)}/captions?${query}`;
}

/** Address of a scan's clip. @param {string} scan @param {number} clip */
export function clipPath(scan, clip) {
  return `${scanPlace(scan)}/clips/${clip}`;
}

/** @param {string} scan */
function scanPlace(scan) {
  return `/wan_trainer/scans/${encodeURIComponent(scan)}`;
}

/** @param {string} run */
function place(run) {
  return `${BASE}/${encodeURIComponent(run)}`;
}

/** @param {Response} response @returns {Promise<any>} */
async function answer(response) {
  const text = await response.text();
  /** @type {any} */
  let data = null;
  try {
    data = JSON.parse(text);
  } catch {
    // An error page or an empty body: the HTTP status is enough.
  }
  for (const one of [data, ...(data?.records ?? [])]) learnSentences(one?.sentences);
  if (response.ok) return data ?? {};
  const said = data?.error?.message ?? data?.error ?? data?.message;
  const answered = t("The server answered {status}.", { status: response.status });
  const message = (typeof said === "string" && said ? said : answered).slice(0, LONGEST_MESSAGE);
  throw Object.assign(new Error(message), { status: response.status });
}

/** The text of an error. @param {unknown} error */
export function message(error) {
  return error instanceof Error ? error.message : String(error);
}

/** Whether a route failed with 404. @param {unknown} error */
export function isMissing(error) {
  return error instanceof Error && "status" in error && error.status === 404;
}
