// @ts-check
/** The status line in nodes that work for long and have no panel. */

import { element } from "./dom.mjs";
import { addWidget } from "./widget.mjs";
import { t } from "./words.mjs";

// Two lines of text, and the 10 pixels the canvas leaves above and below.
const HEIGHT = 60;
// The page's own colours, so that light and dark themes both read well.
const STYLE = `box-sizing: border-box; height: 100%; overflow: hidden; padding: 4px 8px; border-radius: 6px;
  font: 12px/1.3 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere;
  color: var(--input-text, #ddd); background: var(--comfy-input-bg, #222);`;

export class StatusLines {
  /** @param {import("./pacing.mjs").Frames} frames */
  constructor(frames) {
    this.frames = frames;
    /** Texts that wait for the next frame: the line each belongs to, and its newest text. @type {Map<HTMLElement, string>} */
    this.waiting = new Map();
    this.draw = this.draw.bind(this);
  }

  /** @param {import("./graph.mjs").GraphNode} node that gets a line */
  add(node) {
    const line = element("div", { class: "wan-trainer-status" }, t("idle"));
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

  draw() {
    for (const [line, text] of this.waiting) {
      line.textContent = text;
      line.title = text;
    }
    this.waiting.clear();
  }
}
