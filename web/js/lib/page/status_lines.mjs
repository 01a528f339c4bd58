// @ts-check
/** The status line of long-running nodes without a panel. */

import { element } from "./dom.mjs";
import { addWidget, makeRoom } from "./widget.mjs";
import { t } from "./words.mjs";

// Two lines of text, plus the canvas's margin of 10 pixels above and below.
const HEIGHT = 60;
/** Height of a failure's text; a longer text scrolls. */
const FAILED = 120;
// Colours of the page's theme.
const STYLE = `box-sizing: border-box; height: 100%; overflow: hidden; padding: 4px 8px; border-radius: 6px;
  font: 12px/1.35 system-ui, sans-serif; white-space: pre-wrap; overflow-wrap: anywhere;
  color: var(--input-text, #ddd); background: var(--comfy-input-bg, #222);`;

export class StatusLines {
  /** @param {import("./pacing.mjs").Frames} frames */
  constructor(frames) {
    this.frames = frames;
    /** Line -> text to show in the next frame. @type {Map<HTMLElement, string>} */
    this.waiting = new Map();
    /** Nodes with a shown failure. @type {Set<import("./graph.mjs").GraphNode>} */
    this.failed = new Set();
    this.draw = this.draw.bind(this);
  }

  /** Adds a line. @param {import("./graph.mjs").GraphNode} node */
  add(node) {
    const line = element("div", { class: "wan-trainer-status" }, t("Starts with Run."));
    line.style.cssText = STYLE;
    addWidget(node, line, { least: () => HEIGHT, most: () => HEIGHT });
    node.wanTrainerStatus = line;
  }

  /**
   * Shows a text in a line, in the next animation frame.
   * @param {HTMLElement} line
   * @param {string} text
   */
  write(line, text) {
    this.waiting.set(line, text);
    this.frames.ask(this.draw);
  }

  /**
   * Shows in a node why it failed, until the next queue entry starts; adds a line if the node has none.
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

  /** Clears earlier failures, when a queue entry starts. */
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
