// Images of the next message: chosen, dropped or pasted, and sent as data URIs.

import { sees } from "./server.js";
import { make } from "./view.js";

const KINDS = ["image/png", "image/jpeg", "image/webp", "image/gif", "image/bmp"];
const find = (id) => document.getElementById(id);

let waiting = []; // data URIs of the images of the next message

// fail: shows a message about a file that can't be sent.
export function watchImages(fail) {
  const give = (files) => add([...files], fail);
  find("attach").addEventListener("click", () => find("file").click());
  find("file").accept = KINDS.join();
  find("file").addEventListener("change", async ({ target }) => {
    await give(target.files);
    target.value = "";
  });
  find("prompt").addEventListener("paste", (event) => taken(event, event.clipboardData, give));
  find("chat").addEventListener("drop", (event) => taken(event, event.dataTransfer, give));
  find("chat").addEventListener("dragover", (event) => taken(event, event.dataTransfer, () => {}));
}

// Handles files; the browser handles pasted or dropped text.
function taken(event, data, give) {
  if (!sees() || !data.types.includes("Files")) return;
  event.preventDefault();
  give(data.files);
}

async function add(files, fail) {
  const odd = files.filter((file) => !KINDS.includes(file.type));
  if (odd.length) fail(`${odd[0].name} can't be sent: images are PNG, JPEG, WEBP, GIF or BMP.`);
  const found = await Promise.all(files.filter((file) => !odd.includes(file)).map(read));
  setImages([...waiting, ...found]);
  find("prompt").focus();
}

function read(file) {
  return new Promise((done, failed) => {
    const reader = new FileReader();
    reader.onload = () => done(reader.result);
    reader.onerror = () => failed(reader.error);
    reader.readAsDataURL(file);
  });
}

export const images = () => waiting;

// Shows the images of the next message, each with a Remove button.
export function setImages(urls) {
  waiting = urls;
  find("waiting").hidden = !urls.length;
  find("waiting").replaceChildren(...urls.map((url, i) => {
    const box = make("span", "image");
    const button = make("button", "small");
    button.type = "button";
    button.textContent = "Remove";
    button.setAttribute("aria-label", `Remove image ${i + 1}`);
    button.addEventListener("click", () => {
      setImages(waiting.filter((_, place) => place !== i));
      find("attach").focus();
    });
    box.append(picture(url, i), button);
    return box;
  }));
}

export function picture(url, i) {
  const shown = make("img");
  shown.src = url;
  shown.alt = `image ${i + 1}`;
  return shown;
}

// Converts text and image URLs to the content of a message; `said` converts back.
export function content(text, urls) {
  if (!urls.length) return text;
  const parts = urls.map((url) => ({ type: "image_url", image_url: { url } }));
  return text ? [...parts, { type: "text", text }] : parts;
}

export function said(content) {
  if (typeof content === "string") return { text: content, urls: [] };
  const urls = content.flatMap((part) => (part.image_url ? [part.image_url.url] : []));
  return { text: content.map((part) => part.text ?? "").join(""), urls };
}
