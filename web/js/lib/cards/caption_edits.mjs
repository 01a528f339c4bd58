// @ts-check
/** The captions edited in this session of the page, and messages about them. Pure. */

import { told } from "../page/server_sentences.mjs";
import { counted, inOneText, t } from "../page/words.mjs";
import { list, text } from "./lists.mjs";

/**
 * @typedef {{ clip: number, name: string, picture: boolean, caption: string, refusal: string, unreadable: string }}
 *   Caption a caption as the server reads it now; `refusal`: why it cannot be edited; `unreadable`: why the file's content
 *   is no caption
 * @typedef {{ total: number, count: number, can_change: number, places: number, captions: Caption[] }} Search
 * @typedef {{ change: number, clips: number, kept: number, refused: string[] }} Written
 * @typedef {{ caption: (scan: string, clip: number) => Promise<Caption>,
 *   find: (scan: string, text: string) => Promise<Search>,
 *   write: (scan: string, clip: number, before: string, text: string) => Promise<Written & { caption: Caption }>,
 *   replace: (scan: string, find: string, by: string, found: Search) => Promise<Written>,
 *   undo: (scan: string, change: number) => Promise<Written>,
 *   address: (scan: string, clip: number) => string }} Doors functions that read and write captions
 */

/** The edits of one node; they stay valid after another scan. */
export class Memory {
  /** Newest last. @type {{ scan: string, change: number }[]} */
  #changes = [];
  /** Scans whose change was offered. @type {Set<string>} */
  #offered = new Set();
  /** Unsaved texts. @type {Map<string, string>} */
  drafts = new Map();
  /** The search text. */
  find = "";

  /** @param {string} scan @param {Pick<Written, "change">} done */
  keep(scan, { change }) {
    if (change) this.#changes.push({ scan, change });
  }

  /** Keep a change that the node itself made; once, however many times its facts are shown. @param {any} undo */
  offer(undo) {
    if (!isScan(undo?.scan) || !Number.isInteger(undo.change) || this.#offered.has(undo.scan))
      return;
    this.#offered.add(undo.scan);
    this.keep(undo.scan, undo);
  }

  get canUndo() {
    return this.#changes.length > 0;
  }

  /** Removes and returns the newest change. */
  take() {
    return this.#changes.pop();
  }
}

/** Whether a value has the format of a scan id. @param {unknown} scan */
export function isScan(scan) {
  return typeof scan === "string" && /^[0-9a-f]{32}$/.test(scan);
}

/** @param {Search} found */
export function foundText({ count, total, captions }) {
  const said = t("{count} of {total} captions", { count, total });
  const { length: shown } = captions;
  return count > shown ? `${said}, ${t("the first {shown} are shown", { shown })}` : said;
}

/** Label of the button that replaces. @param {Search} found */
export function replaceText({ can_change: captions, places }) {
  return counted(captions, "Replace {places} in 1 caption", "Replace {places} in {n} captions", {
    places,
  });
}

/** Why fewer captions are replaced than found; empty if all are. @param {Search} found */
export function lessText({ count, can_change: able }) {
  return count > able ? t("{count} cannot be changed here", { count: count - able }) : "";
}

/** @param {Written} done @param {boolean} back whether it was an undo */
export function doneText({ clips, refused }, back) {
  return inOneText([back ? putBack(clips) : changed(clips), ...list(refused).map(text).map(told)]);
}

/** @param {number} count */
function putBack(count) {
  return counted(count, "Put back: 1 caption file.", "Put back: {n} caption files.");
}

/** @param {number} count */
function changed(count) {
  return counted(
    count,
    "1 caption changed. Run again to train with it.",
    "{n} captions changed. Run again to train with them.",
  );
}
