// @ts-check
/** The common part of cards: position in the node, height, and the text before the node has run. */

import { color } from "../chart/chart.mjs";
import { isDark } from "../chart/plot.mjs";
import { element, write } from "../page/dom.mjs";
import { t } from "../page/words.mjs";

// The same values as in the style sheet.
const GAP = 6;
const PADDING = 8;
/** Default height limit of a part that scrolls. */
const SCROLLS = 220;

export class Card {
  /**
   * @param {import("../page/pacing.mjs").Frames} frames
   * @param {{ label: string, kind: string, grew: () => void }} options `grew` is called when `least` has changed
   */
  constructor(frames, { label, kind, grew }) {
    this.grew = grew;
    this.draw = this.draw.bind(this);
    this.ask = () => frames.ask(this.draw);
    /** Height that shows everything, in CSS pixels. */
    this.least = 40;
    this.changed = element("p", { class: "wan-changed", role: "status" });
    /** Why the node failed when it last ran. */
    this.failed = element("p", { class: "wan-failed", role: "alert" });
    this.body = element("div", { class: "wan-card-body" });
    this.element = element(
      "section",
      { class: "wan-card", "data-card": kind, "aria-label": label },
      this.changed,
      this.failed,
      this.body,
    );
    for (const kind of ["pointerdown", "pointermove"]) {
      this.element.addEventListener(kind, (event) => keepNode(/** @type {PointerEvent} */ (event)));
    }
    const resized = new ResizeObserver(this.ask);
    for (const part of [this.element, this.body]) resized.observe(part);
  }

  /**
   * Facts of a node that has run; null for one that has not.
   * @param {import("./card_facts.mjs").Facts | null} _facts
   */
  show(_facts) {}

  /**
   * The plan of the training that a node belongs to.
   * @param {import("../fit/sentences.mjs").Plan | null} _plan with `cards`
   */
  showPlan(_plan) {}

  /** Marks the card as outdated because the node failed. @param {string} reason empty when it runs again */
  fail(reason) {
    if (reason) this.show(null);
    write(this.failed, reason);
    this.ask();
  }

  /** @param {string[]} names widgets that were changed since the node ran */
  tellChanged(names) {
    const text = names.length
      ? t("Changed since: {names}. Run again to see what it does.", { names: names.join(", ") })
      : "";
    write(this.changed, text);
  }

  draw() {
    this.paint();
    if (!this.element.clientWidth) return;
    const heads = [...this.element.children].filter((part) => part !== this.body);
    const least = Math.ceil(2 * PADDING + stacked([...heads, ...this.body.children]));
    if (least === this.least) return;
    this.least = least;
    this.grew();
  }

  /** Give each part of a device its device's colour. */
  paint() {
    const parts = this.element.querySelectorAll("[data-device]");
    const dark = parts.length && isDark(getComputedStyle(this.element).backgroundColor);
    for (const part of parts) {
      const { style, dataset } = /** @type {HTMLElement} */ (part);
      const own = color(Number(dataset.device), Boolean(dark));
      style.setProperty("--wan-device", own);
      style.setProperty("--wan-on-device", inkOn(own));
    }
  }
}

/** Black or white, whichever reads better on a colour. @param {string} hex */
function inkOn(hex) {
  const [red, green, blue] = [1, 3, 5].map(
    (at) => (Number.parseInt(hex.slice(at, at + 2), 16) / 255) ** 2.2,
  );
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.18 ? "#000" : "#fff";
}

/** Heights of parts, one below the other. @param {Iterable<Element>} parts */
function stacked(parts) {
  const heights = [...parts].map((part) => heightOf(/** @type {HTMLElement} */ (part)));
  return heights.filter((high) => high > 1).reduce((sum, high) => sum + high + GAP, -GAP);
}

/** @param {HTMLElement} part @returns {number} height that it needs, independent of its current height */
function heightOf(part) {
  const wanted = Number(part.dataset.high);
  if (wanted) return wanted;
  const { scrolls } = part.dataset;
  return scrolls ? Math.min(inside(part), Number(scrolls) || SCROLLS) : part.offsetHeight;
}

/** Height of the content of a part that scrolls. @param {HTMLElement} part */
function inside(part) {
  const children = /** @type {HTMLElement[]} */ ([...part.children]);
  const ends = children.map((child) => child.offsetTop + child.offsetHeight);
  return Math.ceil(Math.max(0, ...ends) - (children[0]?.offsetTop ?? 0));
}

/** The text of a node that has not run. @param {string} what it would show */
export function notYet(what) {
  return element(
    "p",
    { class: "wan-hint" },
    what,
    " ",
    t("Press Run. To see this without training, select only this node and run the selection."),
  );
}

/** Keeps a Vue node from moving while the mouse selects text or seeks in a clip. @param {PointerEvent} event */
function keepNode(event) {
  const target = /** @type {Element} */ (event.target);
  const field = target.closest("input, textarea, video");
  if (!field || !event.buttons) return;
  event.stopPropagation();
  const text = field.tagName !== "VIDEO";
  if (text && event.type === "pointerdown") field.setPointerCapture(event.pointerId); // also outside the field
}
