// @ts-check
/**
 * Uploads clips and captions dropped on a dataset node into a new folder of input/ and lets the node read it. Never
 * overwrites a file.
 */

import { told } from "../page/server_sentences.mjs";
import { counted, inOneText, t } from "../page/words.mjs";

/**
 * @typedef {{ name: string, size: number }} Named
 * @typedef {{ isFile: boolean, isDirectory: boolean, name: string, file: Function, createReader: Function }} Entry
 * @typedef {{ taken: () => Promise<string[]>, upload: (file: File, folder: string) => Promise<string>,
 *   most: () => number, chosen: (folder: string) => Promise<boolean>, say: (text: string, bad?: boolean) => void }} Doors
 *   `taken`: names in input/; `upload` returns the file's name; `most`: maximum bytes of a file; `chosen` lets the node
 *   read a folder
 * @typedef {{ files: File[], left: Record<"kind" | "large" | "twice", string[]> }} Plan
 */

/** Suffixes that the scan reads (wan_core/dataset/files.py), and captions. */
const MEDIA =
  /[.](mp4|m4v|mov|mkv|webm|avi|gif|mpe?g|m?ts|m2ts|wmv|flv|3gp|a?png|jpe?g|webp|bmp|tiff?|avif)$/i;
const CAPTION = /[.](txt|caption|json)$/i;
const LONGEST_NAME = 60;
/** Maximum number of skipped files that a message names. */
const MOST_NAMED = 3;

/** Whether the dragged data may contain files. @param {DragEvent} event */
export function hasFiles({ dataTransfer }) {
  return [...(dataTransfer?.types ?? [])].includes("Files");
}

/**
 * The dropped files, those directly in dropped folders, and the name of the first folder. Call it during the event.
 * @param {DataTransfer | null} carried
 * @returns {Promise<{ files: File[], folder: string }>}
 */
export async function fallen(carried) {
  const entries = entriesOf(carried);
  if (!entries.some((entry) => entry.isDirectory)) {
    return { files: [...(carried?.files ?? [])], folder: "" };
  }
  const inside = await Promise.all(entries.map((one) => (one.isDirectory ? children(one) : [one])));
  const files = await Promise.all(
    inside
      .flat()
      .filter((one) => one.isFile)
      .map((one) => new Promise((done, failed) => one.file(done, failed))),
  );
  return { files, folder: entries.find((one) => one.isDirectory)?.name ?? "" };
}

/** @param {Entry} folder @returns {Promise<Entry[]>} all entries; a browser returns about a hundred per call */
async function children(folder) {
  const reader = folder.createReader();
  const all = [];
  for (;;) {
    /** @type {Entry[]} */
    const some = await new Promise((done, failed) => reader.readEntries(done, failed));
    if (!some.length) return all;
    all.push(...some);
  }
}

/**
 * The files to upload; none if no file is a clip or a still.
 * @param {File[]} files
 * @param {number} most maximum bytes of a file
 * @returns {Plan}
 */
export function planned(files, most) {
  /** @type {Plan} */
  const plan = { files: [], left: { kind: [], large: [], twice: [] } };
  const names = new Set();
  for (const file of files) {
    const { name, size } = file;
    const low = name.toLowerCase();
    if (name.startsWith(".") || !(MEDIA.test(name) || CAPTION.test(name)))
      plan.left.kind.push(name);
    else if (size > most) plan.left.large.push(name);
    else if (names.has(low)) plan.left.twice.push(name);
    else {
      names.add(low);
      plan.files.push(file);
    }
  }
  if (!plan.files.some(({ name }) => MEDIA.test(name))) plan.files = [];
  return plan;
}

/** Whether dragged or dropped data may contain clips. @param {DataTransfer | null} carried */
export function mayTake(carried) {
  const named = [...(carried?.files ?? [])].some(({ name }) => MEDIA.test(name));
  return named || entriesOf(carried).some((entry) => entry.isDirectory);
}

/** @param {DataTransfer | null} carried */
function entriesOf(carried) {
  const entries = [...(carried?.items ?? [])].map((item) => item.webkitGetAsEntry?.());
  return /** @type {Entry[]} */ (entries.filter(Boolean));
}

/**
 * The name of a new folder: the dropped folder's name, or the time; with a number if it exists.
 * @param {string} wanted
 * @param {string[]} taken
 * @param {Date} now
 */
export function newFolder(wanted, taken, now) {
  const clean = wanted
    .replace(/[^\p{L}\p{N} ._-]/gu, "_")
    .replace(/^[ .]+/, "")
    .slice(0, LONGEST_NAME)
    .replace(/[ .]+$/, "");
  const time = now.toISOString().slice(0, 19).replace("T", "_").replaceAll(":", "");
  const name = clean || `dropped_${time}`;
  const known = new Set(taken.map((one) => one.toLowerCase()));
  let free = name;
  for (let number = 2; known.has(free.toLowerCase()); number += 1) free = `${name}_${number}`;
  return free;
}

/**
 * Upload dropped files and let the node read them.
 * @param {{ files: File[], folder: string }} fell
 * @param {Doors} doors
 * @param {Date} now
 * @returns {Promise<boolean>} false if no file is a clip or a still
 */
export async function take({ files, folder: wanted }, doors, now = new Date()) {
  const { files: chosen, left } = planned(files, doors.most());
  if (!chosen.length && !left.large.length) {
    if (wanted)
      doors.say(t("{folder} itself contains no clip or still.", { folder: wanted }), true);
    return wanted !== "";
  }
  let done = 0;
  let problem = "";
  let folder = "";
  try {
    folder = newFolder(wanted, await doors.taken(), now);
    for (const file of chosen) {
      doors.say(
        t("{done} of {total}: {name}", { done: done + 1, total: chosen.length, name: file.name }),
      );
      const name = await doors.upload(file, folder);
      // ComfyUI adds a number to an existing name: another program writes into this folder too.
      if (name !== file.name) throw new Error(t("{name} already exists", { name: file.name }));
      done += 1;
    }
  } catch (error) {
    problem = told(error instanceof Error ? error.message : String(error));
  }
  const set = done > 0 && (await doors.chosen(folder));
  doors.say(said({ done, folder, set, left, problem, total: chosen.length }), Boolean(problem));
  return true;
}

/** @param {{ done: number, total: number, folder: string, set: boolean, left: Plan["left"], problem: string }} what */
function said({ done, total, folder, set, left, problem }) {
  const lines = [
    problem
      ? t("{done} of {total} files are in input/{folder}, then: {problem}.", {
          done,
          total,
          folder,
          problem,
        })
      : arrived(done, folder),
    set && t("Run to see what will be trained."),
    done > 0 && !set && t("The folder of this node comes from a link: set it there."),
    left.large.length > 0 &&
      t(
        "Too large to upload: {names}. Copy them into input/, or start ComfyUI with a larger --max-upload-size.",
        {
          names: some(left.large),
        },
      ),
    left.kind.length > 0 &&
      t("Skipped, because they are not clips, stills or captions: {names}.", {
        names: some(left.kind),
      }),
    left.twice.length > 0 &&
      t("Skipped, because the name is in use: {names}.", { names: some(left.twice) }),
  ];
  return inOneText(lines);
}

/** @param {string[]} names */
function some(names) {
  const more = names.length - MOST_NAMED;
  const first = names.slice(0, MOST_NAMED).join(", ");
  return more > 0 ? t("{names} and {count} more", { names: first, count: more }) : first;
}

/** @param {number} done how many files @param {string} folder */
function arrived(done, folder) {
  return (
    done > 0 &&
    counted(done, "1 file is in input/{folder}.", "{n} files are in input/{folder}.", { folder })
  );
}
