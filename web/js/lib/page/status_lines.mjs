// @ts-check
/** The status line in nodes that work for long and have no panel. */

import { element } from "./dom.mjs";
import { addWidget, makeRoom } from "./widget.mjs";
import { t } from "./words.mjs";

// Two lines of text, and the 10 pixels the canvas leaves above and below.
const HEIGHT = 60;
/** Height for the reason of a failure; a longer one scrolls. */
const FAILED = 120;
// The page's own colours, so that light and dark themes both read well.
const STYLE = `box-sizing: border-box; height: 100%; overflow: hidden; padding: 4px 8px; border-radius: 6px;
  font: 12px/1.35 system-ui, sans-serif; white-space: pre-wrap; overflow-wrap: anywhere;
  color: var(--input-text, #ddd); background: var(--comfy-input-bg, #222);`;

export class StatusLines {
  /** @param {import("./pacing.mjs").Frames} frames */
  constructor(frames) {
    this.frames = frames;
    /** Texts that wait for the next frame: the line each belongs to, and its newest text. @type {Map<HTMLElement, string>} */
    this.waiting = new Map();
    /** Nodes with a shown failure. @type {Set<import("./graph.mjs").GraphNode>} */
    this.failed = new Set();
    this.draw = this.draw.bind(this);
  }

  /** @param {import("./graph.mjs").GraphNode} node that gets a line */
  add(node) {
    const line = element("div", { class: "wan-trainer-status" }, t("Starts with Run."));
    line.style.cssText = STYLE;
    addWidget(node, line, { least: () => HEIGHT, most: () => HEIGHT });
    node.wanTrainerStatus = line;
  }

  /**
   * Show a text in a line, with whatever else changes in the same frame.
   * @param {HTMLElement} line
   * @param {string} text
   */
  write(line, text) {
    this.waiting.set(line, text);
    this.frames.ask(this.draw);
  }

  /**
   * Says in a node why it failed, until something runs again. Nodes without a line get one then.
   * @param {import("./graph.mjs").GraphNode} node
   * @param {string} text
   */
  fail(node, text) {
    const line = node.wanTrainerFailure ?? this.addFailure(node);
    line.textContent = text;
    line.title = text;
    line.hidden = false;
    this.failed.add(node);
    makeRoom(node);
  }

  /** @param {import("./graph.mjs").GraphNode} node */
  addFailure(node) {
    const line = element("div", { class: "wan-failed", role: "alert" });
    const high = () => (line.hidden ? 0 : FAILED);
    addWidget(node, line, { least: high, most: high });
    node.wanTrainerFailure = line;
    return line;
  }

  /** A queue entry has started: earlier failures are cleared. */
  begun() {
    for (const node of this.failed) {
      if (node.wanTrainerFailure) node.wanTrainerFailure.hidden = true;
      makeRoom(node);
    }
    this.failed.clear();
  }

  draw() {
    for (const [line, text] of this.waiting) {
      line.textContent = text;
      line.title = text;
    }
    this.waiting.clear();
  }
}
