import assert from "node:assert/strict";
import { test } from "node:test";
import { lastWritten, pieces, stripped } from "../../src/format/ansi.ts";
import { blocksOf, linesOf, marked } from "../../src/logs/lines.ts";
import { joined } from "../../src/logs/use_log.ts";
import { chance } from "../fixtures/random.ts";

test("colours become looks, and all other codes vanish", () => {
  assert.deepEqual(pieces("\u001b[1;31mred\u001b[0m plain \u001b[92mgreen"), [
    { text: "red", look: "el-ansi-red el-ansi-bold" }, { text: " plain ", look: "" }, { text: "green", look: "el-ansi-green" },
  ]);
  assert.equal(stripped("a\u001b]0;title\u0007b\u001b[2Jc\u001b(Bd\u001b[38;5;200me\u0008\u0000f\tg"), "abcdef\tg");
  assert.equal(stripped("\u001b]8;;https://example.org\u001b\\link\u001b]8;;\u001b\\"), "link");
  assert.deepEqual(pieces("\u001b[38;2;1;31;3mx"), [{ text: "x", look: "" }]);
});

test("pieces hold what is left of any text, whatever it is made of", () => {
  const random = chance(3);
  const parts = ["\u001b", "[", "31", "m", ";", "]", "\u0007", "x", "<b>", "\u009b", "K", "\r", "é", "P", "\\"];
  for (let round = 0; round < 2000; round += 1) {
    const text = Array.from({ length: 12 }, () => parts[Math.floor(random() * parts.length)]).join("");
    const shown = pieces(text).map((piece) => piece.text).join("");
    assert.equal(shown, stripped(text));
    assert.doesNotMatch(shown, /[\u0000-\u0008\u000b-\u001f\u007f-\u009f]/);
  }
});

test("a line that was written over shows its last form", () => {
  assert.equal(lastWritten("10%\r50%\r100%"), "100%");
  assert.equal(lastWritten("100%\r"), "100%");
  assert.deepEqual(linesOf("a\nb\r\nc", false), ["a", "b", "c"]);
  assert.deepEqual(linesOf("tail\nb\n", true), ["…tail", "b"]);
  assert.deepEqual(linesOf("", true), []);
});

test("blocks of lines stay while lines are added", () => {
  const lines = Array.from({ length: 450 }, (_, index) => `line ${index}`);
  const before = blocksOf(lines.slice(0, 410), 7);
  const after = blocksOf(lines, 7);
  assert.deepEqual(after.slice(0, 2), before.slice(0, 2));
  assert.deepEqual(after.flatMap((block) => block.lines), lines);
});

test("what was searched for is marked, and the text stays whole", () => {
  assert.deepEqual(marked("an Error, error", "ERROR"), [
    { text: "an ", hit: false }, { text: "Error", hit: true }, { text: ", ", hit: false }, { text: "error", hit: true },
  ]);
  assert.deepEqual(marked("İİ error", "error"), [{ text: "İİ error", hit: false }]);
  assert.deepEqual(marked("x", ""), [{ text: "x", hit: false }]);
});

test("new text is put after the old; a file that began anew replaces it", () => {
  const held = { text: "ab", offset: 3, next: 5, size: 5, read: true, trouble: "gone" };
  assert.deepEqual(joined(held, { text: "cd", offset: 5, next: 7, size: 9 }), { text: "abcd", offset: 3, next: 7, size: 9, read: true, trouble: null });
  assert.equal(joined(held, { text: "z", offset: 0, next: 1, size: 1 }).text, "z");
  assert.equal(joined(held, { text: "", offset: 5, next: 5, size: 5 }).text, "ab");
});
