// @ts-check
/** Disk space of cached clips, below the list of runs, and a button that deletes clips that no unfinished run needs. */

import { ask, button, element, fill } from "../page/dom.mjs";
import { t } from "../page/words.mjs";
import { gib } from "../run/format.mjs";

/**
 * @typedef {{ bytes: number, spare: number }} Room
 * @typedef {{ read: () => Promise<Room>, trim: () => Promise<{ freed: number }>, say: (text: string) => void, failed: (error: unknown) => void }} Actions
 */

/** The question before deleting cached clips, or a message if there are none to delete. @param {Room} room */
export function roomText({ bytes, spare }) {
  if (!bytes) return t("No clips are cached.");
  const size = gib(bytes);
  if (!spare)
    return t(
      "Cached clips use {size}. All of them belong to unfinished runs, or were queued within the last hour.",
      { size },
    );
  return t(
    "Cached clips use {size}, and no unfinished run needs {spare} of that. Delete these? A later run encodes them again if it needs them. Your clips, saved steps and LoRAs are kept.",
    { size, spare: gib(spare) },
  );
}

export class CachedClips {
  /** @param {Actions} actions */
  constructor(actions) {
    this.actions = actions;
    this.open = button(
      t("Cached clips …"),
      t("Shows the disk space of cached clips, and deletes those no unfinished run needs"),
      () => this.ask(),
    );
    this.question = element("div", { class: "wan-question" });
    this.element = element("div", { class: "wan-cached" }, this.open, this.question);
  }

  async ask() {
    try {
      this.show(await this.actions.read());
    } catch (error) {
      this.actions.failed(error);
    }
  }

  /** @param {Room} room */
  show(room) {
    const no = button(room.spare ? t("Keep them") : t("Close"), t("Delete nothing"), () =>
      this.close(),
    );
    const yes = button(
      t("Delete {size}", { size: gib(room.spare) }),
      t("Delete the cached clips that no unfinished run needs"),
      () => this.trim(),
    );
    ask(this.question, {
      label: t("Cached clips"),
      words: element("p", {}, roomText(room)),
      no,
      yes: room.spare ? yes : undefined,
      refused: () => this.close(),
    });
  }

  close() {
    fill(this.question);
    this.open.focus();
  }

  async trim() {
    this.close();
    try {
      const { freed } = await this.actions.trim();
      this.actions.say(t("{size} are free again.", { size: gib(freed) }));
    } catch (error) {
      this.actions.failed(error);
    }
  }
}
