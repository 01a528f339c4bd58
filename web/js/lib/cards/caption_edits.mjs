// @ts-check
/** The captions edited in this session of the page, and messages about them. Pure. */

import { told } from "../page/server_sentences.mjs";
import { counted, inOneText, t } from "../page/words.mjs";
import { list, text } from "./lists.mjs";

/**
 * @typedef {{ clip: number, name: string, picture: boolean, caption: string, refusal: string, unreadable: string,
 *   choice?: import("./choices.mjs").Choice, choice_refusal?: string, duration_s?: number, bucket?: import("./choices.mjs").Bucket }}
 *   Caption a caption and the choice about its clip as the server reads them now; `refusal`: why it cannot be edited;
 *   `unreadable`: why the file's content is no caption; `choice_refusal`: why the choice cannot be read
 * @typedef {{ total: number, count: number, can_change: number, places: number, captions: Caption[] }} Search
 * @typedef {{ change: number, clips: number, kept: number, refused: string[] }} Written
 * @typedef {{ caption: (scan: string, clip: number) => Promise<Caption>,
 *   find: (scan: string, text: string, group: string) => Promise<Search>,
 *   write: (scan: string, clip: number, before: string, text: string) => Promise<Written & { caption: Caption }>,
 *   replace: (scan: string, find: string, by: string, found: Search) => Promise<Written>,
 *   choose: (scan: string, clip: number, before: import("./choices.mjs").Choice, choice: import("./choices.mjs").Choice) =>
 *   Promise<Written & { caption: Caption }>,
 *   undo: (scan: string, change: number) => Promise<Written>, measure: (scan: string) => Promise<{ findings?: unknown }>,
 *   address: (scan: string, clip: number) => string, frame: (scan: string, clip: number) => string }} Doors functions that
 *   read and write captions and choices; `measure`: measures clips for some seconds; `frame`: address of a clip's first frame
 */

/** The edits of one node; they stay valid after another scan. */
export class Memory {
  /** Newest last; `choice`: a choice about a clip, not captions. @type {{ scan: string, change: number, choice: boolean }[]} */
  #changes = [];
  /** Scans whose change was offered. @type {Set<string>} */
  #offered = new Set();
  /** Unsaved texts. @type {Map<string, string>} */
  drafts = new Map();
  /** The search text. */
  find = "";
  /** The group that is shown alone; empty for all clips. */
  group = "";

  /** @param {string} scan @param {Pick<Written, "change">} done @param {boolean} [choice] */
  keep(scan, { change }, choice = false) {
    if (change) this.#changes.push({ scan, change, choice });
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

/** @param {Search} found @param {boolean} [clips] whether a group of clips was asked for, not a text */
export function foundText({ count, total, captions }, clips = false) {
  const said = clips
    ? t("{count} of {total} clips", { count, total })
    : t("{count} of {total} captions", { count, total });
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

/** @param {Written} done @param {boolean} back whether it was an undo @param {boolean} [choice] of a choice */
export function doneText({ clips, refused }, back, choice = false) {
  if (choice) return t("Restored: the previous choice.");
  return inOneText([back ? putBack(clips) : changed(clips), ...list(refused).map(text).map(told)]);
}

/** @param {number} count */
function putBack(count) {
  return counted(count, "Restored: 1 caption file.", "Restored: {n} caption files.");
}

/** @param {number} count */
function changed(count) {
  return counted(
    count,
    "1 caption changed. Run again to train with it.",
    "{n} captions changed. Run again to train with them.",
  );
}
