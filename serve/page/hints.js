// Token details, shown under the pointer, or with the arrow keys in a focused answer.

const box = document.getElementById("hint");

export function watchTokens(messages) {
  messages.addEventListener("pointerover", (event) => show(event.target.closest(".token")));
  messages.addEventListener("pointerleave", () => show());
  messages.addEventListener("focusout", () => show());
  messages.addEventListener("scroll", () => show());
  messages.addEventListener("keydown", step);
}

function show(token) {
  document.querySelector(".token.current")?.classList.remove("current");
  box.hidden = !token;
  if (!token) return;
  token.classList.add("current");
  box.textContent = token.dataset.hint;
  const place = token.getClientRects()[0];
  const room = document.documentElement.clientWidth - box.offsetWidth - 8;
  box.style.left = `${Math.max(8, Math.min(place.left, room))}px`;
  box.style.top = `${place.top > 40 ? place.top - box.offsetHeight - 6 : place.bottom + 6}px`;
}

function step(event) {
  const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!by || !event.target.classList.contains("text")) return;
  event.preventDefault();
  const tokens = [...event.target.querySelectorAll(".token")];
  const at = tokens.findIndex((token) => token.classList.contains("current"));
  show(tokens[Math.max(0, Math.min(tokens.length - 1, at + by))]);
}
