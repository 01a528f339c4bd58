// @ts-check
/** A scanned dataset in numbers and words, for the cards of dataset nodes. Pure. */

import { counted, t } from "../page/words.mjs";
import { clock, gib, known } from "../run/format.mjs";
import { list, records, text } from "./lists.mjs";

/**
 * The output `wan_dataset` of a dataset node (wan_core/dataset/facts.py).
 * @typedef {{ count?: number, names?: string[] }} Named
 * @typedef {Named & { kind: string }} Finding
 * @typedef {{ frames: number | null, width: number | null, height: number | null, clips: number, stills: number,
 *   samples: number, batches: number[] }} Bucket
 * @typedef {{ clip?: number, name: string, kind: string, frames: number, width: number, height: number,
 *   caption: string, choice?: import("./choices.mjs").Choice }} Cell
 * @typedef {{ scan?: unknown, folders?: string[], clips?: number, stills?: number, samples?: number, held_out?: Named, fps?: number,
 *   batch_sizes?: number[], averaged?: boolean, buckets?: Bucket[], findings?: Finding[],
 *   left_out?: { count?: number, files?: { name: string, reason: string, clip?: number | null, wants?: string }[] }, excluded?: Named,
 *   cache_bytes?: number,
 *   captions?: number, encoding_s?: number | null,
 *   sheet?: { columns: number, rows: number, cell_width: number, cell_height: number, name_height: number,
 *   cells: Cell[] } }} Dataset
 * @typedef {{ kind: string, text: string, count: number, names: string, warns: boolean }} Note
 * @typedef {{ clip: number | null, name: string, about: string, empty: boolean, excluded: boolean, left: string, top: string,
 *   wide: string, shape: string }} Picture `clip`: its number in the scan; `empty`: whether it has no caption
 */

/** Findings for information, without a remedy. */
const NOTES = [
  "variable_rate",
  "trigger_alone",
  "faster",
  "held_last",
  "first_page",
  "not_measured",
  "few_files",
  "every_caption",
  "held_out_how",
];
/** Findings that disappear when the clip has a caption. */
const WORDLESS = ["needs_caption", "no_caption", "trigger_alone"];

/**
 * The dataset in numbers, without zeros.
 * @param {Dataset} dataset
 * @returns {import("../run/facts.mjs").Fact[]}
 */
export function numbers(dataset) {
  const many = (/** @type {unknown} */ count) => (known(count) && count > 0 ? `${count}` : "");
  const bytes = dataset.cache_bytes;
  /** @type {[string, string, string][]} */
  const all = [
    [t("clips"), t("Video files that are used"), many(dataset.clips)],
    [t("stills"), t("Pictures that are used"), many(dataset.stills)],
    [
      t("samples"),
      t("Windows, crops and captions cut from the files"),
      cutUp(dataset) ? many(dataset.samples) : "",
    ],
    [
      t("held out"),
      t("Used for validation (evaluation loss), never trained"),
      many(dataset.held_out?.count),
    ],
    [
      t("excluded"),
      t("Excluded on the contact sheet: the file is kept and not trained"),
      many(dataset.excluded?.count),
    ],
    [
      t("skipped"),
      t("Files that cannot be used; the reasons are below"),
      many(dataset.left_out?.count),
    ],
    [t("warnings"), t("What may be wrong, below the table"), many(warnings(dataset))],
    [
      t("cache"),
      t("Disk space of latents, conditioning and masks, without texts"),
      known(bytes) && bytes ? size(bytes) : "",
    ],
    [
      t("encoding"),
      t("About, at the speed of the last encoding on this machine"),
      clock(dataset.encoding_s),
    ],
  ];
  return all.filter(([, , value]) => value).map(([name, title, value]) => ({ name, title, value }));
}

/** Whether files give several samples each. @param {Dataset} dataset */
function cutUp({ clips = 0, stills = 0, samples }) {
  return known(samples) && samples !== clips + stills;
}

/** @param {number} bytes */
function size(bytes) {
  return bytes < 2 ** 20 ? `${Math.ceil(bytes / 1024)} KiB` : gib(bytes);
}

/** @param {Dataset} dataset @returns {number} number of kinds of warnings */
export function warnings(dataset) {
  return notes(dataset).filter((note) => note.warns).length;
}

/**
 * The dataset without findings about files that have got a caption since the scan.
 * @template {Dataset} T
 * @param {T} dataset as scanned
 * @param {Map<string, string>} written captions written since, by file name
 * @returns {T}
 */
export function withCaptions(dataset, written) {
  const findings = records(dataset.findings).flatMap((one) => {
    if (!WORDLESS.includes(String(one.kind))) return [one];
    const names = list(one.names).filter((name) => !written.get(text(name)));
    const count = (known(one.count) ? one.count : 0) - (list(one.names).length - names.length);
    return count > 0 ? [{ ...one, count, names }] : [];
  });
  return /** @type {T} */ ({ ...dataset, findings });
}

/**
 * The dataset with the findings of its measured clips.
 * @template {Dataset} T
 * @param {T} dataset as scanned
 * @param {Finding[]} measured all findings of measures
 * @returns {T}
 */
export function withMeasures(dataset, measured) {
  const kinds = ["not_measured", ...measured.map((one) => one.kind)];
  const others = records(dataset.findings).filter((one) => !kinds.includes(String(one.kind)));
  return { ...dataset, findings: [...others, ...measured] };
}

/**
 * The table of buckets: column titles, batch sizes as further column titles, and rows of texts; the first text of a row is
 * its heading.
 * @param {Dataset} dataset
 */
export function table(dataset) {
  const samples = cutUp(dataset);
  const head = [t("width × height × frames"), t("files"), ...(samples ? [t("samples")] : [])];
  const many = (/** @type {unknown} */ count) => (known(count) ? count : 0);
  const rows = records(dataset.buckets).map((row) => [
    bucketName(row),
    `${many(row.clips) + many(row.stills)}`,
    ...(samples ? [`${many(row.samples)}`] : []),
    ...list(row.batches).map(String),
  ]);
  return { head, sizes: list(dataset.batch_sizes).map(String), rows };
}

/** @param {Dataset} dataset */
export function tableTitle(dataset) {
  return dataset.averaged
    ? t("Batches in an average epoch. All clips of a batch have the same size")
    : t("Batches in an epoch. All clips of a batch have the same size");
}

/** @param {Record<string, any>} bucket */
function bucketName({ frames, width, height }) {
  return known(frames) ? `${width} × ${height} × ${frames}` : t("all");
}

/**
 * The findings, warnings first.
 * @param {Dataset} dataset
 * @returns {Note[]}
 */
export function notes(dataset) {
  const all = records(dataset.findings).map((one) => ({
    kind: String(one.kind),
    text: findingText(String(one.kind), Number(one.count)),
    count: known(one.count) ? one.count : 0,
    names: list(one.names).map(text).filter(Boolean).join(", "),
    warns: !NOTES.includes(String(one.kind)),
  }));
  return all.sort((a, b) => Number(b.warns) - Number(a.warns));
}

/** @param {string} kind @param {number} count @returns {string} the kind itself if it is unknown */
function findingText(kind, count) {
  switch (kind) {
    case "enlarged":
      return t("smaller than their training size, so enlarged");
    case "interlaced":
      return t("interlaced: the model learns comb artefacts");
    case "variable_rate":
      return t("with a variable frame rate");
    case "trigger_alone":
      return t("without a caption: the trigger word alone");
    case "needs_caption":
      return t("without a caption");
    case "no_caption":
      return t("without a caption: the empty prompt");
    case "long_caption":
      return t("caption probably over 512 tokens, and truncated there");
    case "no_mask":
      return t("without a mask: the complete picture is trained");
    case "given_whole":
      return t(
        "the model gets the complete clip as input, so it learns nothing: add clips, or train the text-to-video model",
      );
    case "faster":
      return t("faster than the model: frames are dropped");
    case "slower":
      return t("slower than the model: frames repeat, and the model learns to stutter");
    case "held_last":
      return t("one frame short: the last frame is repeated");
    case "first_page":
      return t("several pages: the first is trained");
    case "same_bytes":
      return counted(
        count,
        "group of files with the same bytes",
        "groups of files with the same bytes",
      );
    case "look_alike":
      return counted(
        count,
        "group of files that look the same",
        "groups of files that look the same",
      );
    case "not_compared":
      return t("not checked for duplicates: the time limit was reached");
    case "still":
      return t("nothing moves: the model learns stillness");
    case "still_start":
      return t("no motion at the start of the trained frames: cut it off");
    case "still_end":
      return t("no motion at the end of the trained frames: cut it off");
    case "cuts":
      return t("cuts inside the trained frames: turn on split_scenes");
    case "repeated":
      return t("frames repeat, so motion stutters");
    case "combed":
      return t("interlaced (combed lines): the model learns them");
    case "flicker":
      return t("brightness flickers: the model learns it");
    case "blurred":
      return t("blurred at the training size");
    case "bars":
      return t("black bars: crop them off");
    case "overlay":
      return t("text or a logo in one place: crop it off, or mask it");
    case "not_measured":
      return t("not measured yet: point at the contact sheet to measure them");
    case "few_files":
      return t("few files: the background is learned together with the subject");
    case "same_captions":
      return t("the same caption as other clips: a prompt cannot choose between them");
    case "every_caption":
      return t("words in every caption: they act like the trigger word");
    case "held_out_how":
      return t("held out for validation: as named in held_out, or chosen by file content");
    default:
      return kind;
  }
}

/**
 * Where every file is on the contact sheet, as percentages of one picture.
 * @param {Dataset} dataset
 * @returns {Picture[]}
 */
export function pictures({ sheet }) {
  const { columns, cell_width: wide, cell_height: high, name_height: below } = sheet ?? {};
  if (![columns, wide, high, below].every((one) => known(one) && one > 0)) return [];
  const [across, picture, row] = [Number(columns), Number(high), Number(high) + Number(below)];
  return list(sheet?.cells).map((/** @type {Cell} */ cell, index) => ({
    clip: Number.isInteger(cell?.clip) ? Number(cell.clip) : null,
    name: text(cell?.name),
    about: about(cell),
    empty: cell?.caption === "",
    excluded: cell?.choice?.excluded === true,
    left: `${-100 * (index % across)}%`,
    top: `${((-100 * row) / picture) * Math.floor(index / across)}%`,
    wide: `${100 * across}%`,
    shape: `${Number(wide)} / ${picture}`,
  }));
}

/** Describes a file. @param {Cell} cell */
function about(cell) {
  const sides = [cell?.width, cell?.height, cell?.frames];
  const shape = sides.every(known) ? sides.join(" × ") : "";
  return [text(cell?.name), shape, text(cell?.caption)].filter(Boolean).join("\n");
}
