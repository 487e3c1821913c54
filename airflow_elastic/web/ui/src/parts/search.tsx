// A field to search with, that waits until the person has stopped typing.
import { useEffect, useRef, useState } from "react";
import { Input } from "../chakra.ts";

interface Props {
  value: string;
  onChange: (value: string) => void;
  label: string;
}

const WAIT_MS = 250;

export function Search({ value, onChange, label }: Props) {
  const [typed, setTyped] = useState(value);
  const timer = useRef<ReturnType<typeof setTimeout>>(undefined);
  useEffect(() => setTyped(value), [value]);
  useEffect(() => () => clearTimeout(timer.current), []);
  const change = (text: string, wait: number) => {
    setTyped(text);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => onChange(text), wait);
  };
  return (
    <Input
      type="search"
      size="sm"
      className="el-search"
      value={typed}
      placeholder={label}
      aria-label={label}
      onChange={(event) => change(event.target.value, WAIT_MS)}
      onKeyDown={(event) => {
        if (event.key === "Enter") change(typed, 0);
        if (event.key === "Escape") change("", 0);
      }}
    />
  );
}
