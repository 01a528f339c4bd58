// @ts-check
/** The failure of a run: icon, headline, the full sentence, and the three next actions. */

import { button, element, fill, mark, write } from "../page/dom.mjs";
import { message } from "../page/routes.mjs";
import { told } from "../page/server_sentences.mjs";
import { t } from "../page/words.mjs";
import { report, troubleOf } from "../run/trouble.mjs";

/**
 * @typedef {import("../run/trouble.mjs").Trouble} Trouble
 * @typedef {{ queue?: () => Promise<void>, copy?: (text: string) => Promise<void>, look?: () => void, isListed?: boolean }} Page
 *   `queue` queues the page's graph; `copy` copies to the clipboard; `look` reads the run again; `isListed`: the box is in the
 *   list of runs
 */

const LOG_LINES = 40;

export class TroubleBox {
  /** @param {Page} page @param {{ log: (run: string) => Promise<string> }} routes @param {(text: string) => void} say */
  constructor(page, routes, say) {
    this.page = page;
    this.routes = routes;
    this.say = say;
    this.run = "";
    /** The queue's error of the failed node; empty while it works. */
    this.broke = "";
    /** @type {Trouble | null} */
    this.trouble = null;
    this.icon = element("span", { class: "wan-trouble-icon", "aria-hidden": "true" });
    this.headline = element("strong");
    this.sentence = element("p");
    this.remedies = element("div", { class: "wan-remedy-lists" });
    this.last = element("p");
    this.log = element("pre", { class: "wan-log", tabindex: "0", hidden: true });
    this.log.setAttribute("aria-label", t("End of the log"));
    this.retry = button("", "", () =>
      this.act(() => (this.trouble?.gone ? this.page.look?.() : this.page.queue?.())),
    );
    this.show = button(t("Show log"), t("The end of the run's log.txt"), () =>
      this.act(() => this.toggle()),
    );
    this.copy = button(
      t("Copy"),
      t("Copy what happened and the end of the log, for a report"),
      () => this.act(() => this.copied()),
    );
    this.element = element(
      "div",
      { class: "wan-trouble", role: "group", hidden: true },
      element("div", {}, this.icon, this.headline),
      this.sentence,
      this.remedies,
      this.last,
      element("div", { class: "wan-trouble-buttons" }, this.retry, this.show, this.copy),
      this.log,
    );
    this.element.setAttribute("aria-label", t("What went wrong"));
  }

  /** Clears the box: another run is shown, or this one runs again. */
  forget() {
    this.broke = "";
  }

  /**
   * @param {string} run
   * @param {import("../page/routes.mjs").Summary | null} summary
   * @param {number} [reached] the newest step in its metrics
   * @param {number | null} [gone] the last saved step, or 0, if ComfyUI does not respond
   */
  draw(run, summary, reached, gone = null) {
    const trouble = troubleOf(summary, {
      reached,
      said: this.broke,
      gone,
      isListed: this.page.isListed,
    });
    if (run !== this.run || !trouble) this.close();
    this.run = run;
    this.trouble = trouble;
    this.element.hidden = !trouble;
    if (!trouble) return;
    mark(this.element, "data-kind", trouble.gone ? "gone" : "failed");
    write(this.icon, trouble.gone ? "?" : "✕");
    write(this.headline, trouble.headline);
    write(this.sentence, trouble.sentence);
    this.advise(trouble);
    write(this.retry, trouble.retry);
    this.retry.hidden = !trouble.retry;
    this.show.hidden = Boolean(trouble.gone);
    this.retry.title = trouble.hint;
  }

  /** @param {Trouble} trouble */
  advise({ remedies = [], last = "" }) {
    const known = JSON.stringify(remedies);
    if (this.remedies.dataset.known !== known) {
      this.remedies.dataset.known = known;
      fill(this.remedies, ...remedies.flatMap(listed));
    }
    write(this.last, last);
    this.last.hidden = !last;
  }

  /** @param {() => Promise<void> | void} work */
  async act(work) {
    try {
      await work();
    } catch (error) {
      this.say(told(message(error)));
    }
  }

  close() {
    this.log.hidden = true;
    write(this.show, t("Show log"));
  }

  async toggle() {
    if (this.log.hidden) {
      const lines = ((await this.tail()).trimEnd() || t("The log is empty.")).split("\n");
      fill(this.log, ...lines.map((line) => element("span", {}, `${line}\n`)));
      this.log.hidden = false;
      write(this.show, t("Hide log"));
      toItsEnd(this.log);
    } else this.close();
  }

  /** A node that failed before its run started has no log. */
  async tail() {
    const text = this.run ? await this.routes.log(this.run) : "";
    return text.split("\n").slice(-LOG_LINES).join("\n");
  }

  async copied() {
    if (!this.trouble) return;
    const log = await this.tail().catch(() => "");
    await this.page.copy?.(report(this.run, this.trouble, log));
    this.say(t("Copied."));
  }
}

/** @param {import("../run/trouble.mjs").Remedies} remedies */
function listed({ lead, helps }) {
  return [element("p", {}, lead), element("ol", {}, ...helps.map((one) => element("li", {}, one)))];
}

/** Scrolls to the end of a log, so that a line at the top is shown completely or not at all. @param {HTMLElement} log */
function toItsEnd(log) {
  log.style.maxHeight = "";
  log.scrollTop = log.scrollHeight;
  const lines = /** @type {HTMLElement[]} */ ([...log.children]);
  const down = (/** @type {HTMLElement} */ line) => line.offsetTop - (lines[0]?.offsetTop ?? 0);
  const first = lines.find((line) => down(line) >= log.scrollTop);
  if (!first || !log.scrollTop) return; // the log does not scroll, or one line fills the box
  log.style.maxHeight = `${log.clientHeight - (down(first) - log.scrollTop)}px`;
  log.scrollTop = log.scrollHeight;
}
