// Some lines of a log, as text with colours: nothing in it is ever taken for markup.
import { memo, useState } from "react";
import { pieces } from "../format/ansi.ts";
import { bytes } from "../format/numbers.ts";
import { marked } from "./lines.ts";

/** Of a longer line so many characters are shown at first. */
const LONG = 2000;

interface Props {
  lines: readonly string[];
  text: string;
}

export const LogBlock = memo(
  function LogBlock({ lines, text }: Props) {
    return (
      <div className="el-log-block" style={{ containIntrinsicSize: `auto ${lines.length * 18}px` }}>
        {lines.map((line, index) => (
          <Line key={index} line={line} text={text} />
        ))}
      </div>
    );
  },
  (before, after) => before.text === after.text && sameLines(before.lines, after.lines),
);

function sameLines(before: readonly string[], after: readonly string[]): boolean {
  return before.length === after.length && before.every((line, index) => line === after[index]);
}

function Line({ line, text }: { line: string; text: string }) {
  const [whole, setWhole] = useState(false);
  const cut = !whole && line.length > LONG;
  const shown = cut ? line.slice(0, LONG) : line;
  return (
    <div className="el-line">
      {pieces(shown).map((piece, index) => (
        <span key={index} className={piece.look}>
          {marked(piece.text, text).map((part, at) => (part.hit ? <mark key={at}>{part.text}</mark> : part.text))}
        </span>
      ))}
      {cut && (
        <button type="button" className="el-link" onClick={() => setWhole(true)}>
          … {bytes(line.length - LONG)} more
        </button>
      )}
      {shown === "" && "\u200b"}
    </div>
  );
}
