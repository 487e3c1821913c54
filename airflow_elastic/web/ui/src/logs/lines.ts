// From text to lines, and from lines to blocks that stay the same while more is appended.
import { lastWritten } from "../format/ansi.ts";

const BLOCK = 200;

/** The lines as a terminal would leave them. A first line that may have lost its beginning is marked so. */
export function linesOf(text: string, cut: boolean): string[] {
  if (text === "") return [];
  const lines = text.split("\n").map(lastWritten);
  if (lines.at(-1) === "") lines.pop();
  if (cut && lines.length > 0) lines[0] = `…${lines[0]}`;
  return lines;
}

export interface Block {
  key: string;
  lines: readonly string[];
}

/** Blocks of lines; their keys tell where the text begins, so that text put in before makes new ones. */
export function blocksOf(lines: readonly string[], offset: number): Block[] {
  const blocks: Block[] = [];
  for (let from = 0; from < lines.length; from += BLOCK) {
    blocks.push({ key: `${offset}.${from}`, lines: lines.slice(from, from + BLOCK) });
  }
  return blocks;
}

export interface Part {
  text: string;
  hit: boolean;
}

/** The text in parts, those that were searched for marked; upper and lower case are the same. */
export function marked(text: string, searched: string): Part[] {
  if (!searched) return [{ text, hit: false }];
  const parts: Part[] = [];
  const low = text.toLowerCase();
  const wanted = searched.toLowerCase();
  let from = 0;
  // Where lower case has another length than the text, places would be wrong: then nothing is marked.
  if (low.length !== text.length) return [{ text, hit: false }];
  for (let at = low.indexOf(wanted); at >= 0; at = low.indexOf(wanted, from)) {
    if (at > from) parts.push({ text: text.slice(from, at), hit: false });
    parts.push({ text: text.slice(at, at + wanted.length), hit: true });
    from = at + wanted.length;
  }
  if (from < text.length) parts.push({ text: text.slice(from), hit: false });
  return parts;
}
