// @ts-check
/** The card of the dataset nodes: numbers, contact sheet, batches by size, what may be wrong, what was left out. */

import { element, fill } from "../page/dom.mjs";
import { t } from "../page/words.mjs";
import { number } from "../panel/parts.mjs";
import { Card, notYet } from "./card.mjs";
import { notes, numbers, pictures, table, tableTitle } from "./dataset.mjs";
import { list, text } from "./lists.mjs";

/** @typedef {import("./dataset.mjs").Dataset} Dataset */

export class DatasetCard extends Card {
  /**
   * @param {import("../page/pacing.mjs").Frames} frames
   * @param {() => void} grew
   * @param {(image: unknown) => string} address where the page finds a picture of the node's output; empty for none
   */
  constructor(frames, grew, address) {
    super(frames, { label: t("What will be trained"), kind: "dataset", grew });
    this.address = address;
    this.show(null);
  }

  /** @param {(Dataset & { image?: unknown }) | null} dataset */
  show(dataset) {
    if (!dataset) fill(this.body, notYet(t("Shows the files, their sizes and the batches.")));
    else this.fill(dataset);
    this.ask();
  }

  /** @param {Dataset & { image?: unknown }} dataset */
  fill(dataset) {
    const facts = numbers(dataset).map(number);
    fill(
      this.body,
      element("dl", { class: "wan-facts" }, ...facts),
      this.sheet(dataset),
      buckets(dataset),
      ...noted(dataset),
      leftOut(dataset, this.ask),
    );
  }

  /** The contact sheet, picture by picture: as many beside each other as there is room for. @param {Dataset & { image?: unknown }} dataset */
  sheet(dataset) {
    const source = this.address(dataset.image);
    const cells = pictures(dataset).map((picture) => cell(picture, source));
    if (!cells.length) return null;
    const label = t("First frames");
    const shown = { class: "wan-sheet", tabindex: 0, "aria-label": label, "data-scrolls": "yes" };
    return element("ul", shown, ...cells);
  }
}

/** @param {import("./dataset.mjs").Picture} picture @param {string} source of the whole sheet */
function cell({ name, about, left, top, wide, shape }, source) {
  const image = element("img", {
    alt: "",
    loading: "lazy",
    draggable: "false",
    // Temporary files are gone after a restart: the names stay.
    onerror: () => image.remove(),
  });
  if (source) image.src = source;
  Object.assign(image.style, { left, top, width: wide });
  const frame = element("div", { class: "wan-frame" }, source ? image : null);
  frame.style.aspectRatio = shape;
  return element("li", { title: about }, frame, element("span", {}, name));
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

/** @param {Dataset} dataset */
function noted(dataset) {
  const all = notes(dataset);
  if (!all.length) return [];
  const rows = all.map(({ text: said, count, names, warns }) =>
    element(
      "li",
      { "data-warns": String(warns), title: names },
      element("strong", {}, `${warns ? "⚠ " : ""}${count} `),
      said,
      names ? element("span", { class: "wan-names" }, names) : null,
    ),
  );
  return [element("ul", { class: "wan-notes", "aria-label": t("What may be wrong") }, ...rows)];
}

/** @param {Dataset} dataset @param {() => void} resized */
function leftOut({ left_out: left }, resized) {
  const files = list(left?.files);
  if (!files.length) return null;
  const more = Number(left?.count ?? 0) - files.length;
  return element(
    "details",
    { class: "wan-left-out", ontoggle: resized },
    element("summary", {}, t("Left out, and why")),
    element(
      "ul",
      {},
      ...files.map((file) =>
        element("li", {}, element("strong", {}, text(file?.name)), `: ${text(file?.reason)}`),
      ),
      more > 0 ? element("li", {}, t("and {count} more, in the report", { count: more })) : null,
    ),
  );
}
