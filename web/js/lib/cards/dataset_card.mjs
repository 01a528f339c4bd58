// @ts-check
/** The card of the dataset nodes: numbers, contact sheet, batches by size, warnings, skipped files. */

import { button, element, fill, mark, write } from "../page/dom.mjs";
import { told } from "../page/server_sentences.mjs";
import { counted, t } from "../page/words.mjs";
import { number } from "../panel/parts.mjs";
import { isScan, Memory } from "./caption_edits.mjs";
import { Card, notYet } from "./card.mjs";
import { notes, numbers, table, tableTitle, withCaptions, withMeasures } from "./dataset.mjs";
import { list, records, text } from "./lists.mjs";
import { EMPTY, SKIP } from "./remedies.mjs";
import { Sheet } from "./sheet.mjs";

/**
 * @typedef {import("./dataset.mjs").Dataset} Dataset
 * @typedef {{ missing: (value: string) => boolean, trigger: (word: string) => boolean }} Remedies for files without a
 *   caption; each returns whether it worked
 */

/** The finding that blocks training. */
const STOPS = "needs_caption";
/** Number of skipped files that are listed before "more". */
const FEW = 4;
const stopped = () =>
  t(
    "Run does not train yet. Choose one of these, or click a picture below and write its caption; then press Run. No file is deleted.",
  );

export class DatasetCard extends Card {
  /**
   * @param {import("../page/pacing.mjs").Frames} frames
   * @param {() => void} grew
   * @param {(image: unknown) => string} address returns the address of an output's picture; empty for none
   * @param {Remedies} remedies
   * @param {import("./caption_edits.mjs").Doors} captions
   * @param {boolean} drops whether clips can be dropped on the node
   */
  constructor(frames, grew, address, remedies, captions, drops = false) {
    super(frames, { label: t("What will be trained"), kind: "dataset", grew });
    this.address = address;
    this.remedies = remedies;
    this.captions = captions;
    this.memory = new Memory();
    this.drops = drops;
    /** The result of dropped files. */
    this.dropped = element("p", { class: "wan-dropped", role: "status" });
    this.body.before(this.dropped);
    this.show(null);
  }

  /** @param {(Dataset & { image?: unknown, undo?: unknown }) | null} dataset */
  show(dataset) {
    if (dataset) {
      write(this.dropped, ""); // the card shows the dropped files now
      this.memory.offer(dataset.undo);
      this.fill(dataset);
    } else fill(this.body, notYet(t("Shows the files, their sizes and the batches.")), this.hint());
    this.ask();
  }

  hint() {
    if (!this.drops) return null;
    const said = t("Clips and captions dropped on this node go into a new folder of input/.");
    return element("p", { class: "wan-hint" }, said);
  }

  /** Show the result of dropped files. @param {string} text @param {boolean} bad */
  tell(text, bad = false) {
    write(this.dropped, text);
    mark(this.dropped, "data-bad", String(bad));
    this.ask();
  }

  /** @param {Dataset & { image?: unknown }} dataset */
  fill(dataset) {
    const facts = element("dl", { class: "wan-facts" });
    const stops = element("div", { class: "wan-stops", role: "group", "aria-label": stopped() });
    const found = element("ul", { class: "wan-notes", "aria-label": t("What may be wrong") });
    let drawn = "";
    let known = dataset;
    let captions = new Map();
    const say = (/** @type {Map<string, string>} */ written) => {
      captions = written;
      const now = withCaptions(known, written);
      if (JSON.stringify(now.findings) === drawn) return; // keeps the text that the user is typing
      drawn = JSON.stringify(now.findings);
      fill(facts, ...numbers(now).map(number));
      fill(stops, ...stopping(now, this.remedies));
      fill(found, ...noted(now));
      for (const one of [stops, found]) one.hidden = !one.hasChildNodes();
    };
    say(new Map());
    const sheet = new Sheet(dataset, {
      source: this.address(dataset.image),
      doors: this.captions,
      memory: this.memory,
      resized: this.ask,
      wrote: say,
    });
    const measured = (/** @type {import("./dataset.mjs").Finding[]} */ findings) => {
      known = withMeasures(known, findings);
      say(captions);
      this.ask();
    };
    const measure = () => sheet.scan && this.#measure(sheet.scan, measured);
    for (const kind of ["pointerenter", "focusin"])
      sheet.cells.addEventListener(kind, measure, { once: true });
    fill(
      this.body,
      facts,
      stops,
      leftOut(dataset, this.ask, (clip, name) => sheet.open(clip, name)),
      ...sheet.parts,
      buckets(dataset),
      found,
    );
  }

  /**
   * Measures the clips of a scan, some seconds by request, until all are measured.
   * @param {string} scan
   * @param {(findings: import("./dataset.mjs").Finding[]) => void} measured
   */
  async #measure(scan, measured) {
    for (let left = true; left; ) {
      const answer = await this.captions.measure(scan).catch(() => null);
      const findings = records(answer?.findings);
      left = findings.some(({ kind }) => kind === "not_measured");
      if (answer) measured(/** @type {any[]} */ (findings));
    }
  }
}

/** @param {Dataset} dataset */
function buckets(dataset) {
  const { head, sizes, rows } = table(dataset);
  if (!rows.length) return null;
  const column = (/** @type {string} */ one) => element("th", { scope: "col" }, one);
  const cells = (/** @type {string[]} */ row) =>
    row.map((one, index) => element(index ? "td" : "th", index ? {} : { scope: "row" }, one));
  const made = element(
    "table",
    {},
    element("caption", {}, tableTitle(dataset)),
    element(
      "thead",
      {},
      element(
        "tr",
        {},
        ...head.map((one) => element("th", { scope: "col", rowspan: 2 }, one)),
        element("th", { scope: "colgroup", colspan: sizes.length || 1 }, t("batches of")),
      ),
      element("tr", {}, ...sizes.map(column)),
    ),
    element("tbody", {}, ...rows.map((row) => element("tr", {}, ...cells(row)))),
  );
  const shown = { class: "wan-buckets", tabindex: 0, role: "group", "aria-label": t("Batches") };
  return element("div", shown, made);
}

/**
 * Problems that block training, with remedies.
 * @param {Dataset} dataset
 * @param {Remedies} remedies
 */
function stopping(dataset, remedies) {
  return notes(dataset)
    .filter(({ kind }) => kind === STOPS)
    .flatMap(({ text: said, count, names }) => [
      element("strong", {}, `✕ ${stopped()}`),
      element("p", { title: names }, `${count} `, said),
      names ? element("span", { class: "wan-names" }, names) : null,
      offered(remedies),
    ]);
}

/** @param {Dataset} dataset */
function noted(dataset) {
  return notes(dataset)
    .filter(({ kind }) => kind !== STOPS)
    .map(({ text: said, count, names, warns }) =>
      element(
        "li",
        { "data-warns": String(warns), title: names },
        element("strong", {}, `${warns ? "⚠ " : ""}${count} `),
        said,
        names ? element("span", { class: "wan-names" }, names) : null,
      ),
    );
}

/** Buttons for files without a caption. @param {Remedies} remedies */
function offered({ missing, trigger }) {
  const said = element("span", { role: "status" });
  const tell = (/** @type {boolean} */ done) =>
    write(
      said,
      done
        ? t("Set. Run again to see what it does.")
        : t("This cannot be set from here: write captions, or set it in the node yourself."),
    );
  const word = element("input", { type: "text", placeholder: t("trigger word") });
  word.setAttribute("aria-label", t("trigger word"));
  const use = () => (word.value.trim() ? tell(trigger(word.value)) : word.focus());
  word.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    event.stopPropagation(); // keeps the key from the canvas's shortcuts
    if (event.key === "Enter") use();
  });
  return element(
    "div",
    { class: "wan-remedies" },
    button(
      t("Skip these files"),
      t("Sets missing_captions: only the other files are trained"),
      () => tell(missing(SKIP)),
    ),
    button(
      t("Train them without words"),
      t("Sets missing_captions: these files get the empty prompt"),
      () => tell(missing(EMPTY)),
    ),
    word,
    button(
      t("Use this trigger word"),
      t(
        "Sets trigger_word: it becomes the caption of these files, and is put in front of the others' captions",
      ),
      use,
    ),
    said,
  );
}

/** The button that opens a skipped file. @param {unknown} wants @param {() => void} open */
function mending(wants, open) {
  if (wants === "frames") return button(t("Look at it"), t("Opens the clip above"), open);
  if (wants === "piece") {
    return button(t("Choose another piece"), t("Opens the clip above"), open);
  }
  return button(
    t("Write a new caption instead (can be undone)"),
    t("Opens the clip above. Your text replaces its text file; Undo restores it."),
    open,
  );
}

/**
 * Skipped files, after the problems that block training.
 * @param {Dataset} dataset
 * @param {() => void} resized
 * @param {(clip: number, name: string) => void} open opens the caption editor of a file skipped for its missing caption
 */
function leftOut({ left_out: left, scan }, resized, open) {
  const files = list(left?.files);
  if (!files.length) return null;
  const count = Math.max(Number(left?.count) || 0, files.length);
  const more = count - files.length;
  return element(
    "details",
    { class: "wan-left-out", open: count <= FEW, ontoggle: resized },
    element(
      "summary",
      {},
      "⚠ ",
      counted(
        count,
        "1 file skipped, with the reason. It is kept, and not trained.",
        "{n} files skipped, with the reason. They are kept, and not trained.",
      ),
    ),
    element(
      "ul",
      {},
      ...files.map((file) =>
        element(
          "li",
          {},
          element("strong", {}, text(file?.name)),
          `: ${told(text(file?.reason))}`,
          isScan(scan) && Number.isInteger(file?.clip)
            ? mending(file.wants, () => open(Number(file.clip), text(file.name)))
            : null,
        ),
      ),
      more > 0 ? element("li", {}, t("and {count} more, in the report", { count: more })) : null,
    ),
  );
}
