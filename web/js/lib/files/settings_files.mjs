// @ts-check
/**
 * Turns settings files of other trainers into a graph: dropped on the page, or chosen with Open. ComfyUI handles all other
 * files.
 */

import { told, toldBare } from "../page/server_sentences.mjs";
import { t } from "../page/words.mjs";

/**
 * @typedef {{ known: boolean, trainer: string, source: string, graph: any, note: string[],
 *   counts: number[], missing: string[], reason?: string }} Imported
 * @typedef {{ name: string, size: number, lastModified: number, text(): Promise<string> }} TextFile
 * @typedef {{ read: (files: Record<string, string>) => Promise<Imported>, open: (graph: any, name: string) => Promise<void>,
 *   say: (severity: string, text: string) => void }} Doors
 */

const TEXT = /[.](toml|ya?ml|json|txt|md|sh|bat|cmd|ps1|py)$/i;
const DOCUMENT = /[.](toml|ya?ml|json)$/i;
/** File types of the dialog Open, besides ComfyUI's own. */
export const SUFFIXES = ".toml,.yaml,.yml,.txt,.md,.sh,.bat,.cmd,.ps1,.py";
/** A settings file of another trainer contains one of these words. */
const WORDS = /model_family|data_backend_config|pretrained_model_name_or_path|"process"/;
const COMMAND = "wan_train_network";
const MOST_BYTES = 512 << 10;
/** HTTP status for invalid settings of a known trainer. */
const REFUSED = 409;
const MOST_FILES = 16;

/** Whether a text may be another trainer's settings; the server decides. @param {string} name @param {string} text */
export function mayBeSettings(name, text) {
  if (/[.](toml|ya?ml)$/i.test(name)) return true;
  return /[.]json$/i.test(name) ? WORDS.test(text) && !isGraph(text) : text.includes(COMMAND);
}

/** Whether a text is a workflow or a graph of the queue API. @param {string} text */
function isGraph(text) {
  try {
    const data = JSON.parse(text);
    const nodes = Object.values(data ?? {});
    return Array.isArray(data?.nodes) || (nodes.length > 0 && nodes.every((n) => n?.class_type));
  } catch {
    return true; // no JSON: left to ComfyUI
  }
}

export class SettingsFiles {
  /** Files of the last drop. @type {TextFile[]} */
  #dropped = [];
  /** @type {Set<string>} */
  #taken = new Set();

  /** @param {Doors} doors */
  constructor(doors) {
    this.doors = doors;
  }

  /** Called with files dropped on the page, before ComfyUI opens one or each of them. @param {Iterable<TextFile>} files */
  fell(files) {
    this.#dropped = [...files];
    this.#taken.clear();
  }

  /** Opens a file if it belongs, with the files dropped together, to another trainer. @param {TextFile} file @returns {Promise<boolean>} */
  async takes(file) {
    if (this.#taken.has(nameOf(file))) return true;
    const together = this.#dropped.some((one) => nameOf(one) === nameOf(file));
    const files = await settingsOf(together ? this.#dropped : [file]);
    if (!files.some(({ one }) => nameOf(one) === nameOf(file))) return false;
    if (!files.some(({ one, text }) => mayBeSettings(one.name, text))) return false;
    return this.#open(
      files.map(({ one }) => one),
      Object.fromEntries(files.map(({ one, text }) => [one.name, text])),
    );
  }

  /** Explains why a script that names a trainer cannot be opened. @param {Record<string, string>} texts @param {string} [reason] */
  #tells(texts, reason) {
    const script = Object.entries(texts).some(
      ([name, text]) => !DOCUMENT.test(name) && text.includes(COMMAND),
    );
    if (script && reason) this.doors.say("error", told(reason));
    return script && Boolean(reason);
  }

  /** @param {TextFile[]} files @param {Record<string, string>} texts */
  async #open(files, texts) {
    let found;
    try {
      found = await this.doors.read(texts);
    } catch (error) {
      if (!(error instanceof Error && "status" in error && error.status === REFUSED)) return false;
      this.doors.say("error", told(error.message));
      return true;
    }
    if (!found.known) return this.#tells(texts, found.reason);
    for (const one of files) this.#taken.add(nameOf(one));
    await this.doors.open(
      noteInWords(found, t("What happened to your settings")),
      found.source.replace(/[.]\w+$/, ""),
    );
    this.doors.say(found.missing.length ? "warn" : "success", summary(found));
    return true;
  }
}

/** The graph with a translated note. @param {Pick<Imported, "graph" | "note">} found @param {string} title of the note */
export function noteInWords({ graph, note }, title) {
  const words = { title, widgets_values: [note.map(toldBare).join("\n")] };
  const nodes = graph.nodes.map((/** @type {any} */ node) =>
    node.type === "MarkdownNote" ? { ...node, ...words } : node,
  );
  return { ...graph, nodes };
}

/** @param {Imported} found */
function summary({ trainer, source, counts, missing }) {
  const [taken, changed, without, unknown] = counts;
  const lines = [
    t(
      "Settings in {source} of {trainer}: {taken} imported, {changed} changed, {without} without a counterpart, {unknown} unknown. The note next to the nodes lists them.",
      { source, trainer, taken, changed, without, unknown },
    ),
  ];
  if (missing.length) {
    const files = missing.join(", ");
    lines.push(
      t("It names files that were not dropped with it: {files}. Drop all of them together.", {
        files,
      }),
    );
  }
  return lines.join("\n");
}

/** The files that may be a trainer's, with their texts. @param {TextFile[]} files */
async function settingsOf(files) {
  const small = files.filter((one) => TEXT.test(one.name) && one.size <= MOST_BYTES);
  const read = await Promise.all(small.map(async (one) => ({ one, text: await one.text() })));
  return read
    .filter(({ one, text }) => !(/[.]json$/i.test(one.name) && isGraph(text)))
    .slice(0, MOST_FILES);
}

/** Key of a dropped file, because each read of a drop creates new objects. @param {TextFile} file */
function nameOf(file) {
  return `${file.name}/${file.size}/${file.lastModified}`;
}
