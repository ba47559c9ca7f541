// A memory of WebAssembly, for which V8 reserves address space. Loaded before another script:
//
//     node --require ./reserve.js SCRIPT

global.reserved = new WebAssembly.Memory({ initial: 1, maximum: 65536 });
