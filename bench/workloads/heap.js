// A heap of many small objects, and garbage. Writes `NANOSECONDS NODE` about every millisecond.
//
//     node heap.js MIB FILE

const fs = require('fs');
const os = require('os');

const OBJECT_BYTES = 256; // an object and its string, about
const held = [];
for (let number = 0; number < (Number(process.argv[2]) << 20) / OBJECT_BYTES; number++) {
  held.push({ number, text: `object ${number} ${'x'.repeat(100)}`, next: { number } });
}
const beats = fs.openSync(process.argv[3], 'a');
setInterval(() => {
  for (let number = 0; number < 20; number++) {
    held[Math.floor(Math.random() * held.length)].next = { number };
  }
  fs.writeSync(beats, `${Date.now()}000000 ${os.hostname()}\n`);
}, 1);
