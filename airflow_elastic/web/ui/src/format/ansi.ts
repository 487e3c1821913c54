// Terminal output as plain pieces of text. Colours and bold are kept; every other escape code is left out.

export interface Piece {
  text: string;
  /** A class name of logs.css, or "". */
  look: string;
}

// biome-ignore lint: control characters are what is looked for
const ESCAPES =
  // CSI with its final byte; OSC up to BEL or ST; other two-byte escapes; other control characters but tab and newline
  /\u001b\[([0-?]*)[ -/]*([@-~])|\u001b\][^\u0007\u001b]*(?:\u0007|\u001b\\)?|\u001b[PX^_][^\u001b]*(?:\u001b\\)?|\u001b[ -/]*[0-~]|\u009b[0-?]*[ -/]*[@-~]|[\u0000-\u0008\u000b-\u001f\u007f-\u009f]/g;

/** The text without any escape code or control character. */
export function stripped(text: string): string {
  return text.replace(ESCAPES, "");
}

const COLOURS = ["black", "red", "green", "yellow", "blue", "magenta", "cyan", "white"];

interface Style {
  colour: string;
  bold: boolean;
  faint: boolean;
}

const PLAIN: Style = { colour: "", bold: false, faint: false };

/** A line as pieces that each have one look. */
export function pieces(line: string): Piece[] {
  const found: Piece[] = [];
  let style = PLAIN;
  let from = 0;
  const add = (text: string) => {
    if (text) found.push({ text, look: lookOf(style) });
  };
  for (const match of line.matchAll(ESCAPES)) {
    add(line.slice(from, match.index));
    from = match.index + match[0].length;
    if (match[2] === "m") style = changed(style, match[1] ?? "");
  }
  add(line.slice(from));
  return found;
}

function lookOf({ colour, bold, faint }: Style): string {
  return [colour && `el-ansi-${colour}`, bold && "el-ansi-bold", faint && "el-ansi-faint"].filter(Boolean).join(" ");
}

function changed(style: Style, words: string): Style {
  let after = style;
  const codes = words.split(/[;:]/).map((word) => Number(word || "0"));
  for (let index = 0; index < codes.length; index += 1) {
    const code = codes[index] as number;
    if (code === 0) after = PLAIN;
    else if (code === 1) after = { ...after, bold: true };
    else if (code === 2) after = { ...after, faint: true };
    else if (code === 22) after = { ...after, bold: false, faint: false };
    else if (code === 39) after = { ...after, colour: "" };
    else if (code >= 30 && code <= 37) after = { ...after, colour: COLOURS[code - 30] as string };
    else if (code >= 90 && code <= 97) after = { ...after, colour: COLOURS[code - 90] as string };
    else if (code === 38 || code === 48) index += codes[index + 1] === 5 ? 2 : 4; // of 256 or of all colours: left out
  }
  return after;
}

/** What a terminal would show of a line that was written over: the part after the last carriage return. */
export function lastWritten(line: string): string {
  const body = line.endsWith("\r") ? line.slice(0, -1) : line;
  return body.slice(body.lastIndexOf("\r") + 1);
}
